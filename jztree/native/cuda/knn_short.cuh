// The search for k up to 32: a warp answers 32 queries that follow each other in z-order, one a lane.
//
// The warp walks the planes together. A leaf is looked at if any lane's ball reaches its box; its coordinates are
// loaded once, by 32 lanes side by side, and read from shared memory by all lanes at once (a broadcast). Each lane
// tests every particle of the leaf against its own radius and collects what is inside; the lists take these up in
// batches, without branches. So lanes diverge only in what they collect, and memory traffic is a leaf for 32 queries,
// mostly from the caches.
#pragma once

#include <cstdint>

#include "knn_problem.cuh"

namespace jztree {

constexpr int short_search_threads = 128;

// A lane that has collected more than this asks all to take up a batch. Later, fewer batches are needed, but radii stay
// wide for longer: of 1, 1.5, 2 and 3 batches, 1.5 gave the fewest instructions (counted with the emulator on 100,000
// uniform points, k = 8 and 16).
template <int K, typename T>
constexpr int patience = RegisterList<K, T>::batch * 3 / 2;

// Candidates of one warp on their way into the lists: column after column of 32, one a lane, with room for one more
// block.
template <int K, typename T>
constexpr int collected_columns =
    patience<K, T> + RegisterList<K, T>::batch > K ? patience<K, T> + RegisterList<K, T>::batch : K;

template <int W, typename T>
struct alignas(16) TilePoint {
  T x[W == 3 ? 4 : W];
};

// Shared memory of one warp, in bytes.
template <int W, int K, typename T>
int64_t short_search_bytes(int planes) {
  int64_t bytes = warp_size * (static_cast<int64_t>(sizeof(TilePoint<W, T>)) +
                               collected_columns<K, T> * static_cast<int64_t>(sizeof(Candidate<T>)));
  return (bytes + stack_entries(planes) * static_cast<int64_t>(sizeof(StackEntry<T>)) + 15) / 16 * 16;
}

template <int W, int K, typename From, typename T>
class ShortSearch {
  using List = RegisterList<K, T>;
  using Tile = TilePoint<W, T>;

 public:
  __device__ ShortSearch(const Problem<From>& problem, const Scale<W, T>& scale, unsigned char* memory)
      : problem_(problem),
        scale_(scale),
        tile_(reinterpret_cast<Tile*>(memory)),
        collected_(reinterpret_cast<Candidate<T>*>(memory + warp_size * sizeof(Tile))),
        stack_(reinterpret_cast<StackEntry<T>*>(memory + warp_size * sizeof(Tile) +
                                                warp_size * collected_columns<K, T> * sizeof(Candidate<T>))) {}

  // Answers the queries of a group. Returns the lanes that float32 cannot answer; nothing is written for them.
  __device__ __forceinline__ unsigned answer(int64_t group) {
    JZTREE_COUNT("group");
    int64_t place = group * warp_size + lane_index();
    bool answers = place < problem_.count();
    query_ = problem_.query(answers ? place : group * warp_size);
    bool searches = answers && query_ < problem_.queries.num();
    start(searches);
    if (__any_sync(all_lanes, searches)) search(searches);
    spread();
    unsigned imprecise = __ballot_sync(all_lanes, searches && !precise());
    write(__ballot_sync(all_lanes, answers) & ~imprecise);
    return imprecise;
  }

 private:
  __device__ __forceinline__ void start(bool searches) {
    count_ = 0;
    own_ = static_cast<int>(problem_.own_row(query_));
    list_.reset(static_cast<int>(problem_.k), searches && own_ >= 0);
    set_bound(searches);
  }

  // Lanes that do not search want nothing.
  __device__ __forceinline__ void set_bound(bool searches) {
    bound_ = searches ? list_.bound() : Candidate<T>::before_all();
    radius2_ = searches ? bound_.distance2() : T{-1};
    worst_ = warp_max_candidate(bound_);
  }

  // One loop for all leaves and for what is left at the end, so that the lists are used in one place of the code only
  // and stay in registers.
  __device__ __forceinline__ void search(bool mine) {
    T low[W], high[W];
    load_group(mine, low, high);
    WarpWalk<W, From, T> walk(problem_.sources, scale_, stack_, low, high);
    for (bool more = true; more;) {
      JZTREE_COUNT("leaf");
      int64_t leaf = walk.next_leaf(worst_);
      more = leaf >= 0;
      T leaf_low[W], leaf_high[W];
      load_box(problem_.sources, scale_, more ? leaf : 0, leaf_low, leaf_high);
      int64_t begin = more ? problem_.sources.leaf_row(leaf) : 0, end = more ? problem_.sources.leaf_row(leaf + 1) : 0;
      if (more && !any_wants(begin, leaf_low, leaf_high)) continue;
      JZTREE_COUNT("wanted leaf");
      Images<W, T> images(scale_, low, high, leaf_low, leaf_high);
      do {
        JZTREE_COUNT("32 rows of a leaf");
        int points = static_cast<int>(end - begin < warp_size ? end - begin : warp_size);
        if (points > 0) fill_tile(begin, points, images);
        collect(begin, points, images, mine, !more);
        begin += warp_size;
      } while (begin < end);
    }
  }

  __device__ __forceinline__ void load_group(bool mine, T* low, T* high) {
    if (mine) load_point(problem_.queries, scale_, query_, x_);
#pragma unroll
    for (int d = 0; d < W; ++d) {
      low[d] = warp_min(mine ? x_[d] : std::numeric_limits<T>::infinity());
      high[d] = warp_max(mine ? x_[d] : -std::numeric_limits<T>::infinity());
      if (!mine) x_[d] = low[d];
    }
  }

  // Whether any lane may find something in a leaf.
  __device__ __forceinline__ bool any_wants(int64_t first_row, const T* leaf_low, const T* leaf_high) const {
    Candidate<T> nearest =
        Candidate<T>::make(box_distance2(scale_, x_, x_, leaf_low, leaf_high), static_cast<uint32_t>(first_row + 1));
    return __any_sync(all_lanes, nearest < bound_);
  }

  // Behind the last particle there is one whose distances are no numbers.
  __device__ __forceinline__ void fill_tile(int64_t first, int points, const Images<W, T>& images) {
    JZTREE_COUNT("fill tile");
    T x[W];
    if (lane_index() < points) {
      load_point(problem_.sources, scale_, first + lane_index(), x);
#pragma unroll
      for (int d = 0; d < W; ++d) x[d] = shifted_down(x[d], images.source_shift[d], images.source_rest[d]);
    } else {
#pragma unroll
      for (int d = 0; d < W; ++d) x[d] = std::numeric_limits<T>::quiet_NaN();
    }
    Tile point{};
#pragma unroll
    for (int d = 0; d < W; ++d) point.x[d] = x[d];
    tile_[lane_index()] = point;
    __syncwarp();
  }

  // Collects from the tile what is within each lane's radius. last: the lists take up all that is left.
  __device__ __forceinline__ void collect(int64_t first, int points, const Images<W, T>& images, bool mine, bool last) {
    JZTREE_COUNT("collect");
    T at[W];
#pragma unroll
    for (int d = 0; d < W; ++d) at[d] = shifted_down(x_[d], images.query_shift[d], images.query_rest[d]);
    int block = 0;
    do {
      JZTREE_COUNT("step of blocks");
      if (block < points) {
        if (images.pairwise) {
          JZTREE_COUNT("block pair by pair");
          collect_block<true>(at, static_cast<int>(first), block);
        } else {
          JZTREE_COUNT("block");
          collect_block<false>(at, static_cast<int>(first), block);
        }
      }
      block += List::batch;
      // Without a bound there is nothing to prune with.
      int most = last || worst_.row_plus_one() == no_row ? 0 : patience<K, T>;
      while (__any_sync(all_lanes, count_ > most)) absorb_batch(mine);
    } while (block < points);
    __syncwarp();
  }

  // All distances first: loads from shared memory cannot pass the stores that follow.
  template <bool Pairwise>
  __device__ __forceinline__ void collect_block(const T* at, int first, int block) {
    T distance[List::batch];
#pragma unroll
    for (int i = 0; i < List::batch; ++i) {
      const Tile point = tile_[block + i];
      distance[i] = distance2<W, Pairwise>(scale_, at, point.x);
    }
#pragma unroll
    for (int i = 0; i < List::batch; ++i) {
      int row = first + block + i;
      if (distance[i] <= radius2_ && row != own_)
        collected_[count_++ * warp_size + lane_index()] =
            Candidate<T>::make(distance[i], static_cast<uint32_t>(row + 1));
    }
  }

  // Every lane takes up as many of its collected candidates as a batch holds, the last ones first.
  __device__ __forceinline__ void absorb_batch(bool mine) {
    JZTREE_COUNT("absorb");
    Candidate<T> others[List::batch];
#pragma unroll
    for (int i = 0; i < List::batch; ++i)
      others[i] = i < count_ ? collected_[(count_ - 1 - i) * warp_size + lane_index()] : no_candidate<T>();
    count_ = count_ > List::batch ? count_ - List::batch : 0;
    list_.absorb(others);
    set_bound(mine);
  }

  // Where a list's i-th is in shared memory. Columns are turned against each other, so that a row of them lies in
  // different banks.
  __device__ static int spread_place(int lane, int i) { return i * warp_size + ((lane + i) & (warp_size - 1)); }

  __device__ __forceinline__ void spread() {
#pragma unroll
    for (int i = 0; i < K; ++i) collected_[spread_place(lane_index(), i)] = list_.best[i];
    __syncwarp();
  }

  __device__ __forceinline__ bool precise() const {
    if (sizeof(T) > sizeof(float)) return true;
    bool good = true;
    // The list rises, so there is nothing to see behind a large distance.
    for (int i = K - static_cast<int>(problem_.k); i < K && good; ++i) {
      JZTREE_COUNT("precise");
      Candidate<T> found = collected_[spread_place(lane_index(), i)];
      if (found.distance2() >= smallest_precise<T>) break;
      good = is_precise(problem_, scale_, found, x_);
    }
    return good;
  }

  // Neighbouring lanes write neighbouring places.
  __device__ __forceinline__ void write(unsigned lanes) {
    int k = static_cast<int>(problem_.k);
#pragma unroll 1
    for (int round = 0; round < k; ++round) {
      JZTREE_COUNT("write");
      int item = round * warp_size + lane_index(), lane = item / k, place = item - lane * k;
      int64_t query = __shfl_sync(all_lanes, query_, lane);
      if (lanes >> lane & 1)
        problem_.write(query, place, collected_[spread_place(lane, K - k + place)], scale_.inverse);
    }
    __syncwarp();
  }

  const Problem<From>& problem_;
  const Scale<W, T>& scale_;
  Tile* tile_;
  Candidate<T>* collected_;
  StackEntry<T>* stack_;
  List list_;
  Candidate<T> bound_, worst_;
  T radius2_, x_[W];
  int count_, own_;
  int64_t query_;
};

template <int W, int K, typename From, typename T>
__global__ void __launch_bounds__(short_search_threads)
    search_short(const __grid_constant__ Problem<From> problem, const Scale<W, T>* scale, int64_t warp_bytes,
                 Unanswered unanswered) {
  int64_t warp = thread_index() / warp_size, warps = static_cast<int64_t>(gridDim.x) * blockDim.x / warp_size;
  JZTREE_COUNT("warp");
  int64_t groups = (problem.count() + warp_size - 1) / warp_size;
  ShortSearch<W, K, From, T> search(problem, *scale, dynamic_shared() + threadIdx.x / warp_size * warp_bytes);
  for (int64_t group = warp; group < groups; group += warps) {
    JZTREE_COUNT("answer");
    unsigned imprecise = search.answer(group);
    if (imprecise != 0 && lane_index() == 0) unanswered.add(group, imprecise);
  }
}

}  // namespace jztree
