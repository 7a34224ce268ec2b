// The search for k up to 128: a warp answers 32 queries that are consecutive in z-order, one per lane. Each lane has a
// list of up to 32 neighbours. For larger k, the warp searches several times, each time for the next 32 neighbours:
// those after the last one found, in the order of distance and row. For k = 64, this takes about a third of the
// instructions that one long list takes (knn_long.cuh).
//
// All lanes walk the planes together. In a leaf, each lane tests one row against the box around all queries, and drops
// the row if it cannot be within the radius of any query. The other rows go to a tile in shared memory, which collects
// rows of several leaves. The lanes process the tile in blocks of eight rows. All lanes read the same row at once (a
// broadcast). Each lane compares it with its own radius and collects it if it is inside. The lists absorb collected
// candidates in batches, without branches. So lanes diverge only when they collect candidates. A leaf is loaded once
// per 32 queries, mostly from the caches.
//
// checks/profiling/knn_instructions.py counts the instructions of a warp.
#pragma once

#include <cstdint>
#include <new>

#include "common/cuda/query_groups.cuh"
#include "knn_limits.cuh"
#include "knn_problem.cuh"
#include "knn_short_memory.cuh"

namespace jztree {

// Repeated: whether the search is repeated for more than K neighbours.
template <int W, int K, typename From, typename T, bool Repeated>
class ShortSearch {
  using List = LaneList<K, T>;
  using Tile = TilePoint<W, T>;
  using Frame = ShortFrame<W, From, T>;

 public:
  __device__ ShortSearch(const Problem<From>& problem, const Scale<W, T>& scale, const Limits<W, T>& limits,
                         unsigned char* memory, uint32_t stops)
      : problem_(problem),
        scale_(scale),
        limits_(limits),
        wrapped_(*problem.wrapped != 0),
        stops_(stops),
        frame_(*reinterpret_cast<Frame*>(memory)),
        tile_(reinterpret_cast<Tile*>(memory + sizeof(Frame))),
        collected_(reinterpret_cast<Candidate<T>*>(tile_ + tile_points)),
        list_{collected_ + warp_size * collected_columns<K, T>},
        stack_(reinterpret_cast<StackEntry<T>*>(list_.first + warp_size * K)) {
    if (lane_index() == 0) new (&frame_.staging) Staging<W, From, T>(scale);
    __syncwarp();
  }

  // Answer up to `width` queries from a place on. Returns the lanes that float32 cannot answer. For these, incomplete
  // answers may be written.
  __device__ __forceinline__ unsigned answer(int64_t first, int width) {
    JZTREE_COUNT("group");
    int64_t place = first + lane_index();
    bool answers = lane_index() < width && place < problem_.count();
    query_ = static_cast<uint32_t>(problem_.query(answers ? place : first));
    bool searches = answers && query_ < problem_.queries.num();
    const int k = static_cast<int>(problem_.k);
    unsigned imprecise = 0;
    last_ = Candidate<T>::before_all();
#pragma unroll 1
    for (first_ = 0; first_ < k; first_ += K) {
      count_ = Repeated && k - first_ > K ? K : k - first_;
      next_ = collected_ + lane_index();
      self_row_ = static_cast<int>(problem_.own_row(query_));
      list_.reset(count_, searches && first_ == 0 && problem_.own_first(self_row_));
      if (__any_sync(all_lanes, searches)) search(searches);
      __syncwarp();
      const bool is_exact = !searches || precise();
      imprecise |= ~__ballot_sync(all_lanes, is_exact);
      write(__ballot_sync(all_lanes, answers) & ~imprecise);
      if (!Repeated) break;
      last_ = list_.bound();
      searches &= is_exact && last_.row_plus_one() != no_row;
    }
    return imprecise;
  }

 private:
  // Which images of a query are next to the rows of a tile. Bit d is set if it is the image below the box in dimension
  // d. The bit `depends` is set if the image depends on the query and the row, or if a wrapped position has a rounding
  // error.
  static constexpr unsigned depends = 1u << W;

  // Lanes that do not search accept no rows. last: the last entry of the lane's list.
  __device__ __forceinline__ void set_bound(bool searches, const Candidate<T>& last) {
    Candidate<T> bound = limits_.each ? bounded(last, limit()) : last;
    bound = choose(searches, bound, Candidate<T>::before_all());
    radius2_ = searches ? bound.distance2() : T{-1};
    wanted_ = wanted_of(bound, second_);
    // Without a bound, no row can be pruned.
    patience_ = wanted_.worst.row_plus_one() == no_row ? 0 : patience<K, T>;
  }

  // A single loop handles all leaves and the remaining rows at the end, so that the code absorbs candidates in only one
  // place.
  __device__ __forceinline__ void search(bool searches) {
    frame_.staging.point(problem_.queries, query_, x_);
    cover(searches);
    T query_rest[W];
    query_rests_ = wrapped_ && __any_sync(all_lanes, frame_.staging.find_rests(problem_.queries, query_, query_rest));
    set_bound(searches, list_.bound());
#pragma unroll
    for (int d = 0; d < W; ++d) at_[d] = x_[d];
    tile_begin_ = tile_count_ = 0;
    images_ = 0;
    WarpWalk<W, 2, From, T> walk(problem_.sources, frame_.staging, frame_.group, stack_, stops_);
    uint32_t row = 0, end = 0;
    for (bool has_rows = true; has_rows;) {
      if (row >= end) has_rows = walk.next_leaf(wanted_, &row, &end);
      Tile point;
      unsigned images = 0, remaining = 0;
      bool needs_images = !has_rows;
      if (has_rows) {
        JZTREE_COUNT("rows");
        remaining = look_at_rows(row + static_cast<uint32_t>(lane_index()), end, &point, &images, &needs_images);
        row += warp_size;
      }
      do {
        JZTREE_COUNT("append");
        unsigned lanes = remaining;
        if (needs_images && (remaining != 0 || !has_rows)) lanes = of_same_images(remaining, images);
        append(point, lanes);
        remaining &= ~lanes;
        if (tile_count_ >= List::batch || !has_rows) drain(searches, !has_rows);
      } while (remaining != 0);
    }
  }

  // Queries that are consecutive in z-order may be far apart at jumps of the curve. So there are two boxes, split at
  // the longest jump: together they have half as many points near them as a single box.
  __device__ __forceinline__ void cover(bool searches) {
    Group<W, 2, T> group(scale_);
    T jump2 = 0;
#pragma unroll
    for (int d = 0; d < W; ++d) {
      if (!searches) x_[d] = 0;
      T jump = x_[d] - __shfl_up_sync(all_lanes, x_[d], 1);
      jump2 += jump * jump;
    }
    bool both_search = (__ballot_sync(all_lanes, searches) << 1 >> lane_index() & 1) && searches;
    unsigned word = static_cast<unsigned>(__float_as_int(static_cast<float>(jump2))) & ~(warp_size - 1u);
    unsigned longest = warp_max_word(both_search ? word | static_cast<unsigned>(lane_index()) : 0);
    second_ = static_cast<unsigned>(lane_index()) >= (longest & (warp_size - 1)) && longest != 0;
    group.cover(0, x_, searches && !second_);
    group.cover(1, x_, searches && second_);
    if (wrapped_) group.widen(frame_.staging);
    group.find_straight();
    T plain2 = std::numeric_limits<T>::infinity();
    for (int box = 0; box < 2; ++box) {
#pragma unroll
      for (int d = 0; d < W; ++d) {
        T reach = group.around[d] / 2 - 2 * group.reach(box, d);
        plain2 = std::fmin(plain2, reach > 0 ? reach * reach * below_one<T> : T{-1});
      }
    }
    if (lane_index() == 0) {
      frame_.group = group;
      frame_.plain2 = plain2;
    }
    __syncwarp();
  }

  // Each lane tests a row. Returns the lanes whose rows may be within the radius of any query. needs_images: whether
  // any of these rows needs images.
  __device__ __forceinline__ unsigned look_at_rows(uint32_t row, uint32_t end, Tile* point, unsigned* images,
                                                   bool* needs_images) {
    frame_.staging.point(problem_.sources, row < end ? row : end - 1, point->x);
    point->row_plus_one = row + 1;
    if (!wrapped_ && images_ == 0 && wanted_.worst.distance2() <= frame_.group.straight2) {
      *needs_images = false;
      return __ballot_sync(all_lanes, row < end && is_near_straight(point->x));
    }
    return look_around(row, end, point, images, needs_images);
  }

  __device__ __forceinline__ bool is_near_straight(const T* x) const {
    bool is_near = false;
#pragma unroll
    for (int box = 0; box < 2; ++box) {
      T least2 = 0;
#pragma unroll
      for (int d = 0; d < W; ++d) {
        T gap = std::fmax(frame_.group.straight_gap(box, d, x[d], x[d]), T{0});
        least2 = d == 0 ? gap * gap : least2 + gap * gap;
      }
      is_near |= least2 * below_one<T> <= wanted_.worst2[box];
    }
    return is_near;
  }

  // The same for rows that may be nearest around the boundary.
  __device__ __forceinline__ unsigned look_around(uint32_t row, uint32_t end, Tile* point, unsigned* images,
                                                  bool* needs_images) {
    JZTREE_COUNT("rows around");
    const Group<W, 2, T>& group = frame_.group;
    bool near_box[2], around = false, has_rests = query_rests_;
    if (wrapped_) {
      T row_rest[W];
      has_rests |= row < end && frame_.staging.find_rests(problem_.sources, row, row_rest);
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
      near_box[box] = row < end && least2 * below_one<T> <= wanted_.worst2[box];
      around |= near_box[box] && box_around;
    }
    *needs_images =
        __any_sync(all_lanes, around || has_rests) || images_ != 0 || !(wanted_.worst.distance2() <= frame_.plain2);
    if (*needs_images) {
      JZTREE_COUNT("images");
      *images = has_rests ? depends : nearest_images(group, near_box, point->x);
    }
    return __ballot_sync(all_lanes, near_box[0] || near_box[1]);
  }

  // The same as nearest_image for boxes of sources. If a row's nearest image is the one below the box, the row is moved
  // there. Rows that are not near a box may use any image: every image is too far from its queries.
  __device__ __forceinline__ unsigned nearest_images(const Group<W, 2, T>& group, const bool* near_box, T* x) const {
    unsigned images = 0, moved = 0;
    bool differ = false;
#pragma unroll
    for (int d = 0; d < W; ++d) {
      Image image[2];
#pragma unroll
      for (int box = 0; box < 2; ++box)
        image[box] = nearest_image(group.low[box][d], group.high[box][d], x[d], x[d], scale_.period[d]);
      Image nearest = near_box[0] ? image[0] : image[1];
      differ |= nearest == Image::depends || (near_box[1] && nearest != image[1]);
      if (nearest == Image::shift_query) images |= 1u << d;
      if (nearest == Image::shift_source) moved |= 1u << d;
    }
    if (differ) return depends;
#pragma unroll
    for (int d = 0; d < W; ++d)
      if (moved >> d & 1) x[d] = shifted_down(x[d], scale_.period[d], scale_.period_rest[d]);
    return images;
  }

  // The remaining rows that can join the tile. If none can, the tile must be emptied first.
  __device__ __forceinline__ unsigned of_same_images(unsigned remaining, unsigned images) {
    JZTREE_COUNT("of same images");
    unsigned next = remaining ? __shfl_sync(all_lanes, images, __ffs(static_cast<int>(remaining)) - 1) : ~0u;
    if (next != images_ && tile_count_ > 0) {
      fill_block();
      return 0;
    }
    images_ = next;
#pragma unroll
    for (int d = 0; d < W; ++d)
      at_[d] = images_ < depends && (images_ >> d & 1) ? shifted_down(x_[d], scale_.period[d], scale_.period_rest[d])
                                                       : x_[d];
    return remaining & __ballot_sync(all_lanes, images == images_);
  }

  __device__ __forceinline__ Tile& tile_place(int i) { return tile_[(tile_begin_ + i) & (tile_points - 1)]; }

  __device__ __forceinline__ void append(const Tile& point, unsigned lanes) {
    if (lanes >> lane_index() & 1) tile_place(tile_count_ + __popc(lanes & ((1u << lane_index()) - 1))) = point;
    tile_count_ += __popc(lanes);
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
  __device__ __forceinline__ void drain(bool searches, bool last) {
    bool has_blocks = true;
    while (has_blocks) {
      JZTREE_COUNT("step of blocks");
      has_blocks = tile_count_ >= List::batch;
      if (has_blocks) {
        if (images_ == depends) {
          JZTREE_COUNT("block pair by pair");
          collect_block_by_pairs();
        } else {
          JZTREE_COUNT("block");
          collect_block();
        }
        tile_begin_ = (tile_begin_ + List::batch) & (tile_points - 1);
        tile_count_ -= List::batch;
        has_blocks = tile_count_ >= List::batch || last;
      }
      while (__any_sync(all_lanes, has_collected(last ? 0 : patience_))) absorb_batch(searches);
    }
    __syncwarp();
  }

  // Whether the lane has collected more than `number` candidates.
  __device__ __forceinline__ bool has_collected(int number) const {
    return next_ > collected_ + number * warp_size + lane_index();
  }

  // Compute all distances first: loads from shared memory cannot be moved across the stores that follow.
  __device__ __forceinline__ void collect_block() {
    Candidate<T> found[List::batch];
#pragma unroll
    for (int i = 0; i < List::batch; ++i) {
      const Tile point = tile_[tile_begin_ + i];
      found[i] = Candidate<T>::make(distance2<W, false>(scale_, at_, point.x), point.row_plus_one);
    }
#pragma unroll
    for (int i = 0; i < List::batch; ++i) collect(found[i]);
  }

  // The same if the image depends on the pair. This is rare, so the loop is short and takes few registers.
  __device__ __forceinline__ void collect_block_by_pairs() {
    T query_rest[W] = {}, point_rest[W] = {};
    if (wrapped_) tile_rests(query_rest, point_rest);
#pragma unroll 1
    for (int i = 0; i < List::batch; ++i) {
      const Tile point = tile_[tile_begin_ + i];
      T row_rest[W];
#pragma unroll
      for (int d = 0; d < W; ++d) row_rest[d] = __shfl_sync(all_lanes, point_rest[d], i);
      T distance = wrapped_ ? distance2<W, true>(scale_, at_, point.x, query_rest, row_rest)
                            : distance2<W, true>(scale_, at_, point.x);
      collect(Candidate<T>::make(distance, point.row_plus_one));
    }
  }

  __device__ __forceinline__ void collect(const Candidate<T>& found) {
    if (!(found.distance2() <= radius2_ && (!Repeated || found.distance2() >= last_.distance2()))) return;
    *next_ = found;
    next_ += warp_size;
  }

  // The rounding errors of the lane's query and of the lane's point of the next block.
  __device__ __forceinline__ void tile_rests(T* query_rest, T* point) const {
    frame_.staging.find_rests(problem_.queries, query_, query_rest);
    uint32_t row_plus_one = lane_index() < List::batch ? tile_[tile_begin_ + lane_index()].row_plus_one : 0;
    if (row_plus_one != 0) frame_.staging.find_rests(problem_.sources, row_plus_one - 1, point);
  }

  // Every lane absorbs up to one batch of its collected candidates, the last ones first. A query that is its own
  // neighbour is in its list from the start.
  __device__ __forceinline__ void absorb_batch(bool searches) {
    JZTREE_COUNT("absorb");
    if (limits_.each) reject_beyond();
    Candidate<T> others[List::batch];
    Candidate<T>* const first = collected_ + lane_index();
#pragma unroll
    for (int i = 0; i < List::batch; ++i) {
      bool is_other = next_ > first;
      if (is_other) next_ -= warp_size;
      others[i] = *next_;
      is_other &= others[i].row_plus_one() != static_cast<uint32_t>(self_row_ + 1);
      if (Repeated) is_other &= last_ < others[i];
      others[i] = choose(is_other, others[i], no_candidate<T>());
    }
    set_bound(searches, list_.absorb(others));
  }

  __device__ const Within<T>* limit() const { return limits_.of(problem_.out_row(query_)); }

  // Among the candidates of the next batch, replace those outside the limit by candidates that sort last.
  __device__ __forceinline__ void reject_beyond() {
    Candidate<T>* const first = collected_ + lane_index();
#pragma unroll 1
    for (int i = 1; i <= List::batch; ++i) {
      Candidate<T>* found = next_ - i * warp_size;
      if (found < first) break;
      if (is_beyond(problem_, limits_, *limit(), found->distance2(), query_, found->row_plus_one() - 1))
        *found = no_candidate<T>();
    }
  }

  __device__ __forceinline__ bool precise() const {
    if (sizeof(T) > sizeof(float)) return true;
    bool is_exact = true;
    // The list ascends, so entries after a large distance need no check.
    for (int i = K - count_; i < K && is_exact; ++i) {
      JZTREE_COUNT("precise");
      Candidate<T> found = list_.own(i);
      if (found.distance2() >= scale_.precise2) break;
      is_exact = is_precise(problem_, scale_, found, query_);
    }
    return is_exact;
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
      int64_t row = __shfl_sync(all_lanes, out_row, lane), self_row = __shfl_sync(all_lanes, self_row_, lane);
      if (lanes >> lane & 1) problem_.write(row * problem_.k + first_ + place, self_row, list_.at(lane, K - k + place));
    }
    __syncwarp();
  }

  const Problem<From>& problem_;
  const Scale<W, T>& scale_;
  const Limits<W, T>& limits_;
  const bool wrapped_;
  const uint32_t stops_;
  Frame& frame_;
  Tile* tile_;
  Candidate<T>* collected_;
  const List list_;
  StackEntry<T>* stack_;
  Wanted<2, T> wanted_;
  T radius2_, x_[W], at_[W];  // at_: the image of the query next to the rows of the tile
  Candidate<T>* next_;        // past the lane's last collected candidate
  bool second_;               // whether the query belongs to the second box of the group
  bool query_rests_;          // whether any query has a rounding error
  Candidate<T> last_;         // the last neighbour that earlier searches found
  int first_, count_;         // the neighbours of this search: their place among all, and their number
  int self_row_, patience_, tile_begin_, tile_count_;
  uint32_t images_, query_;
};

template <int W, int K, typename From, typename T, bool Repeated = false>
__global__ void __launch_bounds__(short_search_threads, (short_search_blocks<W, K, T>))
    search_short(const __grid_constant__ Problem<From> problem, const Scale<W, T>* scale,
                 const __grid_constant__ Limits<W, T> limits, int64_t warp_bytes, uint32_t stops,
                 Unanswered unanswered) {
  int64_t warp = thread_index() / warp_size, warps = static_cast<int64_t>(gridDim.x) * blockDim.x / warp_size;
  int width = queries_per_warp(problem.count(), problem.sources.num());
  if (warp * width >= problem.count()) return;  // before it reads the scale: there may be more warps than groups
  JZTREE_COUNT("warp");
  ShortSearch<W, K, From, T, Repeated> search(problem, *scale, limits,
                                              dynamic_shared() + threadIdx.x / warp_size * warp_bytes, stops);
  for (int64_t first = warp * width; first < problem.count(); first += warps * width) {
    JZTREE_COUNT("answer");
    unsigned imprecise = search.answer(first, width);
    if (imprecise != 0 && lane_index() == 0) unanswered.add(first, imprecise);
  }
}

}  // namespace jztree
