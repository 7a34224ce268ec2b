// The search for k up to 128: a warp answers 32 queries that are consecutive in z-order, one per lane. Up to 32
// neighbours fit into the registers of a lane. For larger k, the warp searches several times, each time for the next 32
// neighbours: those after the last one found, in the order of distance and row. For k = 64, this takes about a third of
// the instructions that lists in shared memory take (knn_long.cuh).
//
// All lanes walk the planes together. In a leaf, each lane tests one row against the box around all queries, and drops
// the row if it cannot be within the radius of any query. The other rows go to a tile in shared memory, which collects
// rows of several leaves. The lanes process the tile in blocks of eight rows. All lanes read the same row at once (a
// broadcast). Each lane compares it with its own radius and collects it if it is inside. The lists absorb collected
// candidates in batches, without branches. So lanes diverge only when they collect candidates. A leaf is loaded once
// per 32 queries, mostly from the caches.
//
// checks/profiling/knn_instructions.py counts the instructions of a warp; docs/gpu.md has the figures.
#pragma once

#include <cstdint>

#include "knn_limits.cuh"
#include "knn_problem.cuh"
#include "knn_short_memory.cuh"

namespace jztree {

// Repeated: whether the search is repeated for more than K neighbours.
template <int W, int K, typename From, typename T, bool Repeated>
class ShortSearch {
  using List = RegisterList<K, T>;
  using Tile = TilePoint<W, T>;

 public:
  __device__ ShortSearch(const Problem<From>& problem, const Scale<W, T>& scale, const Limits<W, T>& limits,
                         unsigned char* memory, uint32_t stops)
      : problem_(problem),
        scale_(scale),
        limits_(limits),
        staging_(scale),
        wrapped_(*problem.wrapped != 0),
        stops_(stops),
        tile_(reinterpret_cast<Tile*>(memory)),
        collected_(reinterpret_cast<Candidate<T>*>(memory + tile_points * sizeof(Tile))),
        stack_(reinterpret_cast<StackEntry<T>*>(memory + tile_points * sizeof(Tile) +
                                                warp_size * collected_columns<K, T> * sizeof(Candidate<T>))) {}

  // Answer the queries of a group. Returns the lanes that float32 cannot answer. For these, incomplete answers may be
  // written.
  __device__ __forceinline__ unsigned answer(int64_t group) {
    JZTREE_COUNT("group");
    int64_t place = group * warp_size + lane_index();
    bool answers = place < problem_.count();
    query_ = problem_.query(answers ? place : group * warp_size);
    bool searches = answers && query_ < problem_.queries.num();
    const int k = static_cast<int>(problem_.k);
    unsigned imprecise = 0;
    last_ = Candidate<T>::before_all();
#pragma unroll 1
    for (first_ = 0; first_ < k; first_ += K) {
      count_ = Repeated && k - first_ > K ? K : k - first_;
      start(searches);
      if (__any_sync(all_lanes, searches)) search(searches);
      spread();
      const bool good = !searches || precise();
      imprecise |= ~__ballot_sync(all_lanes, good);
      write(__ballot_sync(all_lanes, answers) & ~imprecise);
      if (!Repeated) break;
      last_ = list_.bound();
      searches &= good && last_.row_plus_one() != no_row;
    }
    return imprecise;
  }

 private:
  // Which images of a query are next to the rows of a tile. Bit d is set if it is the image below the box in dimension
  // d. The bit `depends` is set if the image depends on the query and the row, or if a wrapped position has a rounding
  // error.
  static constexpr unsigned depends = 1u << W;

  __device__ __forceinline__ void start(bool searches) {
    next_ = collected_ + lane_index();
    own_ = static_cast<int>(problem_.own_row(query_));
    limit_ = limits_.of(problem_.out_row(query_));
    list_.reset(count_, searches && first_ == 0 && problem_.own_first(own_));
  }

  // Lanes that do not search accept no rows.
  __device__ __forceinline__ void set_bound(bool searches) {
    bound_ = choose(searches, bounded(list_.bound(), limit_), Candidate<T>::before_all());
    radius2_ = searches ? bound_.distance2() : T{-1};
    wanted_ = wanted_of(bound_, second_);
    // Without a bound, no row can be pruned.
    patience_ = wanted_.worst.row_plus_one() == no_row ? 0 : patience<K, T>;
  }

  // A single loop handles all leaves and the remaining rows at the end. The code then uses the lists in only one place,
  // and they stay in registers.
  __device__ __forceinline__ void search(bool mine) {
    staging_.point(problem_.queries, static_cast<uint32_t>(query_), x_);
    Group<W, 2, T> group(scale_);
    cover(mine, &group);
    T rest[W];
    query_rests_ =
        wrapped_ && __any_sync(all_lanes, staging_.rests(problem_.queries, static_cast<uint32_t>(query_), rest));
    set_bound(mine);
    copy(x_, at_);
    tile_begin_ = tile_count_ = 0;
    images_ = 0;
    WarpWalk<W, 2, From, T> walk(problem_.sources, staging_, group, stack_, stops_);
    uint32_t row = 0, end = 0;
    for (bool more = true; more;) {
      if (row >= end) more = walk.next_leaf(wanted_, &row, &end);
      Tile point;
      unsigned images = 0, left = 0;
      bool apart = !more;
      if (more) {
        JZTREE_COUNT("rows");
        left = look_at_rows(group, row + static_cast<uint32_t>(lane_index()), end, &point, &images, &apart);
        row += warp_size;
      }
      do {
        JZTREE_COUNT("append");
        unsigned taken = left;
        if (apart && (left != 0 || !more)) taken = of_same_images(left, images);
        append(point, taken);
        left &= ~taken;
        if (tile_count_ >= List::batch || !more) drain(mine, !more);
      } while (left != 0);
    }
  }

  // Queries that are consecutive in z-order may be far apart at jumps of the curve. So there are two boxes, split at
  // the longest jump: together they have half as many points near them as a single box.
  __device__ __forceinline__ void cover(bool mine, Group<W, 2, T>* group) {
    T jump2 = 0;
#pragma unroll
    for (int d = 0; d < W; ++d) {
      if (!mine) x_[d] = 0;
      T jump = x_[d] - __shfl_up_sync(all_lanes, x_[d], 1);
      jump2 += jump * jump;
    }
    bool both_mine = (__ballot_sync(all_lanes, mine) << 1 >> lane_index() & 1) && mine;
    unsigned word = static_cast<unsigned>(__float_as_int(static_cast<float>(jump2))) & ~(warp_size - 1u);
    unsigned longest = warp_max_word(both_mine ? word | static_cast<unsigned>(lane_index()) : 0);
    second_ = static_cast<unsigned>(lane_index()) >= (longest & (warp_size - 1)) && longest != 0;
    group->cover(0, x_, mine && !second_);
    group->cover(1, x_, mine && second_);
    if (wrapped_) group->widen(staging_);
    plain2_ = std::numeric_limits<T>::infinity();
    for (int box = 0; box < 2; ++box) {
#pragma unroll
      for (int d = 0; d < W; ++d) {
        T reach = group->around[d] / 2 - 2 * group->reach(box, d);
        plain2_ = std::fmin(plain2_, reach > 0 ? reach * reach * below_one<T> : T{-1});
      }
    }
  }

  __device__ static void copy(const T* from, T* to) {
#pragma unroll
    for (int d = 0; d < W; ++d) to[d] = from[d];
  }

  // Each lane tests a row. Returns the lanes whose rows may be within the radius of any query. apart: whether any of
  // these rows needs images.
  __device__ __forceinline__ unsigned look_at_rows(const Group<W, 2, T>& group, uint32_t row, uint32_t end, Tile* point,
                                                   unsigned* images, bool* apart) {
    bool near[2], around = false, rests = query_rests_;
    staging_.point(problem_.sources, row < end ? row : end - 1, point->x);
    point->row_plus_one = row + 1;
    if (wrapped_) {
      T rest[W];
      rests |= row < end && staging_.rests(problem_.sources, row, rest);
    }
#pragma unroll
    for (int box = 0; box < 2; ++box) {
      T least2 = 0;
      bool box_around = false;
#pragma unroll
      for (int d = 0; d < W; ++d) {
        T gap = std::fmax(group.gap(box, d, point->x[d], point->x[d], &box_around), T{0});
        least2 = d == 0 ? gap * gap : least2 + gap * gap;
      }
      near[box] = row < end && least2 * below_one<T> <= wanted_.worst2[box];
      around |= near[box] && box_around;
    }
    *apart = __any_sync(all_lanes, around || rests) || images_ != 0 || !(wanted_.worst.distance2() <= plain2_);
    if (*apart) {
      JZTREE_COUNT("images");
      *images = rests ? depends : nearest_images(group, near, point->x);
    }
    return __ballot_sync(all_lanes, near[0] || near[1]);
  }

  // The same as nearest_image for boxes of sources. If a row's nearest image is the one below the box, the row is moved
  // there. Rows that are not near a box may use any image: every image is too far from its queries.
  __device__ __forceinline__ unsigned nearest_images(const Group<W, 2, T>& group, const bool* near, T* x) const {
    unsigned images = 0, moved = 0;
    bool differ = false;
#pragma unroll
    for (int d = 0; d < W; ++d) {
      Image image[2];
#pragma unroll
      for (int box = 0; box < 2; ++box)
        image[box] = nearest_image(group.low[box][d], group.high[box][d], x[d], x[d], scale_.period[d]);
      Image chosen = near[0] ? image[0] : image[1];
      differ |= chosen == Image::depends || (near[1] && chosen != image[1]);
      if (chosen == Image::shift_query) images |= 1u << d;
      if (chosen == Image::shift_source) moved |= 1u << d;
    }
    if (differ) return depends;
#pragma unroll
    for (int d = 0; d < W; ++d)
      if (moved >> d & 1) x[d] = shifted_down(x[d], scale_.period[d], scale_.period_rest[d]);
    return images;
  }

  // The remaining rows that can join the tile. If none can, the tile must be emptied first.
  __device__ __forceinline__ unsigned of_same_images(unsigned left, unsigned images) {
    JZTREE_COUNT("of same images");
    unsigned next = left ? __shfl_sync(all_lanes, images, __ffs(static_cast<int>(left)) - 1) : ~0u;
    if (next != images_ && tile_count_ > 0) {
      fill_block();
      return 0;
    }
    images_ = next;
#pragma unroll
    for (int d = 0; d < W; ++d)
      at_[d] = images_ < depends && (images_ >> d & 1) ? shifted_down(x_[d], scale_.period[d], scale_.period_rest[d])
                                                       : x_[d];
    return left & __ballot_sync(all_lanes, images == images_);
  }

  __device__ __forceinline__ Tile& tile_place(int i) { return tile_[(tile_begin_ + i) & (tile_points - 1)]; }

  __device__ __forceinline__ void append(const Tile& point, unsigned taken) {
    if (taken >> lane_index() & 1) tile_place(tile_count_ + __popc(taken & ((1u << lane_index()) - 1))) = point;
    tile_count_ += __popc(taken);
    __syncwarp();
  }

  // Fill the tile up to a whole block with points whose distances are NaN.
  __device__ __forceinline__ void fill_block() {
    JZTREE_COUNT("fill block");
    int missing = -tile_count_ & (List::batch - 1);
    Tile none{};
#pragma unroll
    for (int d = 0; d < W; ++d) none.x[d] = std::numeric_limits<T>::quiet_NaN();
    if (lane_index() < missing) tile_place(tile_count_ + lane_index()) = none;
    tile_count_ += missing;
    __syncwarp();
  }

  // Collect from the whole blocks of the tile. last: the lists absorb all remaining candidates.
  __device__ __forceinline__ void drain(bool mine, bool last) {
    bool more = true;
    while (more) {
      JZTREE_COUNT("step of blocks");
      more = tile_count_ >= List::batch;
      if (more) {
        if (images_ == depends) {
          JZTREE_COUNT("block pair by pair");
          collect_block<true>();
        } else {
          JZTREE_COUNT("block");
          collect_block<false>();
        }
        tile_begin_ = (tile_begin_ + List::batch) & (tile_points - 1);
        tile_count_ -= List::batch;
        more = tile_count_ >= List::batch || last;
      }
      while (__any_sync(all_lanes, has_collected(last ? 0 : patience_))) absorb_batch(mine);
    }
    __syncwarp();
  }

  // Whether the lane has collected more than `most` candidates.
  __device__ __forceinline__ bool has_collected(int most) const {
    return next_ > collected_ + most * warp_size + lane_index();
  }

  // Compute all distances first: loads from shared memory cannot be moved across the stores that follow.
  template <bool Pairwise>
  __device__ __forceinline__ void collect_block() {
    Candidate<T> found[List::batch];
    T mine[W] = {}, point_rest[W] = {};
    if (Pairwise && wrapped_) tile_rests(mine, point_rest);
#pragma unroll
    for (int i = 0; i < List::batch; ++i) {
      const Tile point = tile_[tile_begin_ + i];
      T distance;
      if (Pairwise && wrapped_) {
        T rest[W];
#pragma unroll
        for (int d = 0; d < W; ++d) rest[d] = __shfl_sync(all_lanes, point_rest[d], i);
        distance = distance2<W, Pairwise>(scale_, at_, point.x, mine, rest);
      } else {
        distance = distance2<W, Pairwise>(scale_, at_, point.x);
      }
      found[i] = Candidate<T>::make(distance, point.row_plus_one);
    }
#pragma unroll
    for (int i = 0; i < List::batch; ++i)
      if (found[i].distance2() <= radius2_ && (!Repeated || found[i].distance2() >= last_.distance2())) {
        *next_ = found[i];
        next_ += warp_size;
      }
  }

  // The rounding errors of the lane's query and of the lane's point of the next block.
  __device__ __forceinline__ void tile_rests(T* mine, T* point) const {
    staging_.rests(problem_.queries, static_cast<uint32_t>(query_), mine);
    uint32_t row_plus_one = lane_index() < List::batch ? tile_[tile_begin_ + lane_index()].row_plus_one : 0;
    if (row_plus_one != 0) staging_.rests(problem_.sources, row_plus_one - 1, point);
  }

  // Every lane absorbs up to one batch of its collected candidates, the last ones first. A query that is its own
  // neighbour is in its list from the start.
  __device__ __forceinline__ void absorb_batch(bool mine) {
    JZTREE_COUNT("absorb");
    if (limit_) reject_beyond();
    Candidate<T> others[List::batch];
    Candidate<T>* const first = collected_ + lane_index();
#pragma unroll
    for (int i = 0; i < List::batch; ++i) {
      bool is_other = next_ > first;
      if (is_other) next_ -= warp_size;
      others[i] = *next_;
      is_other &= others[i].row_plus_one() != static_cast<uint32_t>(own_ + 1);
      if (Repeated) is_other &= last_ < others[i];
      others[i] = choose(is_other, others[i], no_candidate<T>());
    }
    list_.absorb(others);
    set_bound(mine);
  }

  // Among the candidates of the next batch, replace those outside the limit by candidates that sort last.
  __device__ __forceinline__ void reject_beyond() {
    Candidate<T>* const first = collected_ + lane_index();
#pragma unroll 1
    for (int i = 1; i <= List::batch; ++i) {
      Candidate<T>* found = next_ - i * warp_size;
      if (found < first) break;
      if (is_beyond(problem_, limits_, *limit_, found->distance2(), query_, found->row_plus_one() - 1))
        *found = no_candidate<T>();
    }
  }

  // The index in shared memory of the i-th entry of a lane's list. Columns are rotated, so that the entries of one row
  // are in different banks.
  __device__ static int spread_place(int lane, int i) { return i * warp_size + ((lane + i) & (warp_size - 1)); }

  __device__ __forceinline__ void spread() {
#pragma unroll
    for (int i = 0; i < K; ++i) collected_[spread_place(lane_index(), i)] = list_.best[i];
    __syncwarp();
  }

  __device__ __forceinline__ bool precise() const {
    if (sizeof(T) > sizeof(float)) return true;
    bool good = true;
    // The list ascends, so entries after a large distance need no check.
    for (int i = K - count_; i < K && good; ++i) {
      JZTREE_COUNT("precise");
      Candidate<T> found = collected_[spread_place(lane_index(), i)];
      if (found.distance2() >= scale_.precise2) break;
      good = is_precise(problem_, scale_, found, query_);
    }
    return good;
  }

  // Neighbouring lanes write to neighbouring addresses.
  __device__ __forceinline__ void write(unsigned lanes) {
    const int k = count_, inverse = (1 << 16) / k + 1;
    auto out_row = static_cast<uint32_t>(lanes >> lane_index() & 1 ? problem_.out_row(query_) : 0);
#pragma unroll 1
    for (int item = lane_index(); item < warp_size * k; item += warp_size) {
      JZTREE_COUNT("write");
      int lane = item * inverse >> 16, place = item - lane * k;  // quotient and remainder of item / k, for items below
                                                                 // 2^11
      int64_t row = __shfl_sync(all_lanes, out_row, lane), own = __shfl_sync(all_lanes, own_, lane);
      if (lanes >> lane & 1)
        problem_.write(row * problem_.k + first_ + place, own, collected_[spread_place(lane, K - k + place)]);
    }
    __syncwarp();
  }

  const Problem<From>& problem_;
  const Scale<W, T>& scale_;
  const Limits<W, T>& limits_;
  const Staging<W, From, T> staging_;
  const bool wrapped_;
  const uint32_t stops_;
  Tile* tile_;
  Candidate<T>* collected_;
  StackEntry<T>* stack_;
  List list_;
  Candidate<T> bound_;
  Wanted<2, T> wanted_;
  T radius2_, x_[W], at_[W];  // at_: the image of the query next to the rows of the tile
  T plain2_;
  Candidate<T>* next_;  // past the lane's last collected candidate
  bool second_;         // whether the query belongs to the second box of the group
  bool query_rests_;    // whether any query has a rounding error
  Candidate<T> last_;   // the last neighbour that earlier searches found
  int first_, count_;   // the neighbours of this search: their place among all, and their number
  int own_, patience_, tile_begin_, tile_count_;
  unsigned images_;
  int64_t query_;
  const Within<T>* limit_;  // of the query; null: no limit
};

template <int W, int K, typename From, typename T, bool Repeated = false>
__global__ void __launch_bounds__(short_search_threads, (short_search_blocks<W, K, T>))
    search_short(const __grid_constant__ Problem<From> problem, const Scale<W, T>* scale,
                 const __grid_constant__ Limits<W, T> limits, int64_t warp_bytes, uint32_t stops,
                 Unanswered unanswered) {
  int64_t warp = thread_index() / warp_size, warps = static_cast<int64_t>(gridDim.x) * blockDim.x / warp_size;
  JZTREE_COUNT("warp");
  int64_t groups = (problem.count() + warp_size - 1) / warp_size;
  ShortSearch<W, K, From, T, Repeated> search(problem, *scale, limits,
                                              dynamic_shared() + threadIdx.x / warp_size * warp_bytes, stops);
  for (int64_t group = warp; group < groups; group += warps) {
    JZTREE_COUNT("answer");
    unsigned imprecise = search.answer(group);
    if (imprecise != 0 && lane_index() == 0) unanswered.add(group, imprecise);
  }
}

}  // namespace jztree
