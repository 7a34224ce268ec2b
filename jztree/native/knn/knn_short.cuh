// The search for k up to 128: a warp answers 32 queries that are consecutive in z-order, one per lane. Each lane has a
// list of up to 64 neighbours (float64: 32). For larger k, the warp searches several times, each time for the next 32
// neighbours, which come after the last one found in the order of distance and row. For k = 64, this took about a third
// of the instructions that one long list takes (knn_long.cuh).
//
// All lanes walk the planes together. The rows of the sources are scaled and wrapped before the search. Each lane tests
// one row of a leaf, or of the next leaf, against two boxes around all queries, and drops the row if it cannot be
// within the radius of any query. The other rows go to a tile in shared memory, which collects rows of several leaves.
// The lanes process the tile in blocks of eight rows. All lanes read the same row at once (a broadcast). Each lane
// compares it with its own radius and collects it if it is inside. The lists absorb collected candidates in batches,
// without branches. So lanes diverge only when they collect candidates. A leaf is loaded once per 32 queries, mostly
// from the caches.
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

// Repeated: whether the search is repeated for more than K neighbours. Keyed: whether the lists are sorted by keys.
// Then they cannot answer every query.
template <int W, int K, typename From, typename T, bool Repeated, bool Keyed>
class ShortSearch {
  using List = ShortList<K, T, Keyed>;
  using Item = typename List::Item;
  using Lift = typename List::Lift;
  using Tile = StagedRow<W, T>;
  using Frame = ShortFrame<W, From, T>;

 public:
  // rows: the staged sources.
  __device__ ShortSearch(const Problem<From>& problem, const StagedRow<W, T>* rows, const Scale<W, T>& scale,
                         const Limits<W, T>& limits, unsigned char* memory, uint32_t stops)
      : problem_(problem),
        rows_(rows),
        scale_(scale),
        limits_(limits),
        wrapped_(*problem.wrapped != 0),
        stops_(stops),
        frame_(*reinterpret_cast<Frame*>(memory)),
        tile_(reinterpret_cast<Tile*>(memory + sizeof(Frame))),
        collected_(reinterpret_cast<Item*>(tile_ + tile_points)),
        list_(collected_ + warp_size * collected_columns<List>),
        stack_(reinterpret_cast<StackEntry<T>*>(reinterpret_cast<unsigned char*>(list_.first) + List::bytes)) {
    if (lane_index() == 0) new (&frame_.staging) Staging<W, From, T>(scale);
    __syncwarp();
  }

  // Answer the queries from a place on, each by a lane. Returns the lanes whose lists or whose float32 cannot answer.
  // For these, incomplete answers may be written.
  __device__ __forceinline__ unsigned answer(uint32_t first, unsigned lanes) {
    JZTREE_COUNT("group");
    const int64_t place = int64_t{first} + lane_index();
    bool answers = (lanes >> lane_index() & 1) && place < problem_.count();
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
      const bool is_exact = !searches || (list_.is_decided(limit2()) && precise());
      imprecise |= ~__ballot_sync(all_lanes, is_exact);
      write(__ballot_sync(all_lanes, answers) & ~imprecise);
      if (!Repeated) break;
      last_ = list_.bound();
      searches &= is_exact && last_.row_plus_one() != no_row;
    }
    return imprecise;
  }

 private:
  static constexpr unsigned all_dims = (1u << W) - 1, with_rests = 1u << W;

  // Lanes that do not search accept no rows. last: the last entry of the lane's list.
  __device__ __forceinline__ void set_bound(bool searches, const Candidate<T>& last) {
    Candidate<T> bound = last;
    if (limits_.each) {
      JZTREE_COUNT("limit");
      bound = bounded(last, limit());
    }
    bound = choose(searches, bound, Candidate<T>::before_all());
    lifted_limit_ = searches ? list_.lifted_limit(bound.distance2()) : T{-1};
    wanted_ = wanted_of(bound, second_);
    // Without a bound, no row can be pruned.
    most_collected_ = collected_ + lane_index();
    if (wanted_.worst.row_plus_one() != no_row) most_collected_ += List::patience * warp_size;
    if (crossed_ != 0) crossed_ = crossed_dims();
  }

  // The dimensions with a boundary across which rows within the bounds may be nearest. In other dimensions, if the
  // straight distance is not the shortest, both distances exceed the bounds.
  __device__ __forceinline__ unsigned crossed_dims() const {
    const T bound2 = lane_index() < W ? wanted_.worst2[0] : wanted_.worst2[1];
    const unsigned lanes = __ballot_sync(all_lanes, !(around2_ >= bound2));
    return (lanes | lanes >> W) & all_dims;
  }

  // A single loop handles all leaves and the remaining rows at the end, so that the code absorbs candidates in only one
  // place.
  __device__ __forceinline__ void search(bool searches) {
    cover(searches);
    T query_rest[W];
    query_rests_ = wrapped_ && __any_sync(all_lanes, frame_.staging.find_rests(problem_.queries, query_, query_rest));
    crossed_ = all_dims;
    images_ = 0;
    set_bound(searches, list_.bound());
    tile_begin_ = tile_count_ = 0;
    WarpWalk<W, 2, From, T> walk(problem_.sources, frame_.staging, frame_.group, stack_, stops_);
    LeafRows leaf = seeds();
    if (lane_index() == 0) frame_.seeds = {leaf.row, leaf.end - leaf.row};
    __syncwarp();
    const auto own_row = static_cast<uint32_t>(self_row_);
    uint32_t to_label = list_.label_rows(leaf.row, leaf.end - leaf.row);  // the difference of labels and rows
    list_.set_own_label(frame_.seeds.has(own_row) ? own_row + to_label : List::no_label);
    __syncwarp();
    bool is_seed = true;
    for (bool has_rows = true; has_rows;) {
      // The lanes take rows of several leaves.
      uint32_t row = 0, label = 0;
      unsigned filled = 0;
      while (filled < warp_size) {
        JZTREE_COUNT("fill lanes");
        if (leaf.row >= leaf.end) {
          JZTREE_COUNT("next leaf");
          if (is_seed && filled > 0) break;
          is_seed = false;
          if (!walk.next_leaf(wanted_, &leaf)) break;
          if (!list_.has_labels(leaf.end - leaf.row)) {
            JZTREE_COUNT("no labels");
            if (!renumber(leaf.end - leaf.row, &label)) {
              leaf.row = leaf.end;
              break;
            }
          }
          to_label = list_.label_rows(leaf.row, leaf.end - leaf.row);
          if (own_row - leaf.row < leaf.end - leaf.row && !frame_.seeds.has(own_row))
            list_.set_own_label(own_row + to_label);
        }
        const unsigned place = static_cast<unsigned>(lane_index()) - filled, rows = leaf.end - leaf.row;
        const unsigned count = rows < warp_size - filled ? rows : warp_size - filled;
        if (place < count) {
          row = leaf.row + place;
          label = row + to_label;
        }
        filled += count;
        leaf.row += count;
      }
      has_rows = filled > 0;
      Tile point;
      if (has_rows) point = rows_[row];
      bool is_needed = static_cast<unsigned>(lane_index()) < filled;
      if (is_needed && frame_.seeds.has(row)) {
        JZTREE_COUNT("seeds");
        is_needed = is_seed;
        label = List::first_label(row, frame_.seeds.first);
      }
      unsigned images = 0, near_lanes = 0;
      if (has_rows) {
        JZTREE_COUNT("rows");
        if (!list_.has_range()) set_range(point.x, is_needed, searches);
        near_lanes = __ballot_sync(all_lanes, is_needed && is_near(point.x));
        images = images_of(point, near_lanes >> lane_index() & 1);
        point.label = label;
        append(point, near_lanes);
      } else {
        fill_block();
      }
      images_ |= images;
      if (tile_count_ >= List::block || !has_rows) drain(searches, !has_rows);
      if (tile_count_ <= __popc(near_lanes)) images_ = images;
    }
  }

  // Keep only the segments of rows that may still be needed. The rows of the seeds keep their labels. Returns whether
  // there are labels for a number of other rows. label: of the lane's row that is not in the tile yet.
  __device__ __forceinline__ bool renumber(uint32_t rows, uint32_t* label) {
    if constexpr (Keyed) {
      if (list_.has_lost_rows()) return false;
      JZTREE_COUNT("renumber");
      const Segments used = list_.used_segments();
      used.reset(List::segments_of(frame_.seeds.count));
      for_labels(label, [used](uint32_t* label) { used.add(List::segment_of(*label)); });
      __syncwarp();
      for_labels(label,
                 [used](uint32_t* label) { *label = List::in_segment(*label, used.place(List::segment_of(*label))); });
      list_.keep(used);
      if (list_.has_labels(rows)) return true;
      list_.lose();
    }
    return false;
  }

  // Call a function for each label that the lists, the collected candidates and the tile have.
  template <typename Function>
  __device__ __forceinline__ void for_labels(uint32_t* label, const Function& function) {
    function(label);
#pragma unroll 1
    for (int i = 0; i < collected_columns<List>; ++i) {
      Item* const item = collected_ + i * warp_size + lane_index();
      if (item >= next_) break;
      function(item);
    }
#pragma unroll 1
    for (int i = lane_index(); i < tile_count_; i += warp_size) function(&tile_place(i).label);
    list_.for_labels(function);
  }

  // Rows around the rows of the queries in z-order. The lists absorb them before the walk, so that it starts with a
  // bound.
  __device__ __forceinline__ LeafRows seeds() const {
    constexpr int64_t margin = K > 16 ? 32 : 16;
    const int64_t row = __shfl_sync(all_lanes, self_row_, 0), rows = problem_.sources.num();
    LeafRows seeds;
    if (Repeated || row < 0) return seeds;
    seeds.row = static_cast<uint32_t>(row > margin ? row - margin : 0);
    seeds.end = static_cast<uint32_t>(row + warp_size + margin < rows ? row + warp_size + margin : rows);
    return seeds;
  }

  // One bit per dimension: whether the nearest image of any row differs between queries. `with_rests` if positions have
  // rounding errors.
  __device__ __forceinline__ unsigned images_of(const Tile& point, bool is_needed) const {
    if (wrapped_ && __any_sync(all_lanes, query_rests_ || point.label == has_rests)) return with_rests;
    // In many dimensions, most tests would be in vain.
    if (W > 3 || crossed_ == 0) return all_dims;
    JZTREE_COUNT("images");
    unsigned dims = 0;
    const RowBoxes<W, T> boxes = frame_.boxes;
#pragma unroll
    for (int d = 0; d < W; ++d) {
      bool is_straight = true;
#pragma unroll
      for (int box = 0; box < 2; ++box)
        is_straight &= offset_of<false>(boxes, point.x[d], box, d) <= boxes.straight[box][d];
      if (__any_sync(all_lanes, is_needed && !is_straight)) dims |= 1u << d;
    }
    return dims;
  }

  // Queries that are consecutive in z-order may be far apart at jumps of the curve. So there are two boxes, split at
  // the longest jump: together they have half as many points near them as a single box.
  __device__ __forceinline__ void cover(bool searches) {
    Group<W, 2, T> group(scale_);
    T jump2 = 0;
    frame_.staging.point(problem_.queries, query_, at_);
#pragma unroll
    for (int d = 0; d < W; ++d) {
      T jump = at_[d] - __shfl_up_sync(all_lanes, at_[d], 1);
      jump2 += jump * jump;
    }
    bool both_search = (__ballot_sync(all_lanes, searches) << 1 >> lane_index() & 1) && searches;
    unsigned word = static_cast<unsigned>(__float_as_int(static_cast<float>(jump2))) & ~(warp_size - 1u);
    unsigned longest = warp_max_word(both_search ? word | static_cast<unsigned>(lane_index()) : 0);
    second_ = static_cast<unsigned>(lane_index()) >= (longest & (warp_size - 1)) && longest != 0;
    group.cover(0, at_, searches && !second_);
    group.cover(1, at_, searches && second_);
    if (wrapped_) group.widen(frame_.staging);
    group.complete();
    if (lane_index() == 0) frame_.group = group;
    __syncwarp();
    around2_ = std::numeric_limits<T>::infinity();
    if (lane_index() < 2 * W) cover_dimension(lane_index() / W, lane_index() % W);
    __syncwarp();
  }

  // Set values of a box in a dimension.
  __device__ __forceinline__ void cover_dimension(int box, int d) {
    const T low = frame_.group.low[box][d], high = frame_.group.high[box][d], around = frame_.group.around[d];
    const T centre = low <= high ? (low + high) / 2 : T{0};
    frame_.boxes.centre[box][d] = centre;
    const T half = std::fmax(high - centre, centre - low) * above_one<T> + frame_.staging.rounding(d);
    frame_.boxes.half[box][d] = half;
    frame_.boxes.straight[box][d] = around / 2 - half;
    if (around == std::numeric_limits<T>::infinity()) return;
    const T nearest = std::fmin(low, around - high);
    around2_ = nearest > 0 ? nearest * nearest * below_one<T> : T{-1};
  }

  // Estimate the distances from the first rows that are needed.
  __device__ __forceinline__ void set_range(const T* x, bool is_needed, bool searches) {
    JZTREE_COUNT("range");
    if constexpr (Keyed) {
      T reach2 = 0;
#pragma unroll
      for (int box = 0; box < 2; ++box) {
        T sum = 0;
#pragma unroll
        for (int d = 0; d < W; ++d) {
          // Less than 0 for a box without queries.
          const T reach = std::fmax(offset_of<true>(frame_.boxes, x[d], box, d) + frame_.boxes.half[box][d], T{0});
          sum += reach * reach;
        }
        reach2 = std::fmax(reach2, sum);
      }
      if (!__any_sync(all_lanes, is_needed)) return;
      const auto word = static_cast<unsigned>(__float_as_int(is_needed ? reach2 : T{0}));
      list_.set_range(__int_as_float(static_cast<int>(warp_max_word(word))));
      set_bound(searches, list_.bound());
    }
  }

  // Whether a row may be within the radius of any query.
  __device__ __forceinline__ bool is_near(const T* x) const {
    if (crossed_ == 0) {
      JZTREE_COUNT("rows straight");
      return is_near<false>(x);
    } else {
      JZTREE_COUNT("rows around");
      return is_near<true>(x);
    }
  }

  template <bool Around>
  __device__ __forceinline__ bool is_near(const T* x) const {
    const RowBoxes<W, T> boxes = frame_.boxes;
    bool is_near = false;
#pragma unroll
    for (int box = 0; box < 2; ++box) {
      T least2 = 0;
#pragma unroll
      for (int d = 0; d < W; ++d) {
        const T gap = std::fmax(offset_of<Around>(boxes, x[d], box, d) - boxes.half[box][d], T{0});
        least2 = d == 0 ? gap * gap : std::fma(gap, gap, least2);
      }
      is_near |= least2 * below_one<T> <= wanted_.worst2[box];
    }
    return is_near;
  }

  // The distance from the centre of a box in a dimension. Around: to the nearest image, reduced by a possible rounding.
  template <bool Around>
  __device__ __forceinline__ T offset_of(const RowBoxes<W, T>& boxes, T x, int box, int d) const {
    const T offset = std::fabs(x - boxes.centre[box][d]);
    return Around ? std::fmin(offset, frame_.group.around[d] - offset) : offset;
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
    int missing = -tile_count_ & (List::block - 1);
    Tile none{};
#pragma unroll
    for (int d = 0; d < W; ++d) none.x[d] = std::numeric_limits<T>::quiet_NaN();
    if (lane_index() < missing) tile_place(tile_count_ + lane_index()) = none;
    tile_count_ += missing;
    __syncwarp();
  }

  // Collect from the whole blocks of the tile. last: the lists absorb all remaining candidates.
  __device__ __forceinline__ void drain(bool searches, bool last) {
    for (bool has_block = tile_count_ >= List::block; has_block || last; has_block = tile_count_ >= List::block) {
      if (has_block) collect_from_tile();
      while (true) {
        JZTREE_COUNT("step of blocks");
        const Item* const most = has_block ? most_collected_ : collected_ + lane_index();
        if (!__any_sync(all_lanes, next_ > most)) break;
        absorb_batch(searches);
      }
      if (!has_block) break;
    }
    __syncwarp();
  }

  __device__ __forceinline__ void collect_from_tile() {
    const unsigned crossed = images_ & crossed_;
    if (images_ >= with_rests) {
      JZTREE_COUNT("block pair by pair");
      collect_block_by_pairs();
    } else if (crossed != 0) {
      JZTREE_COUNT("block across");
      collect_block<true>(crossed);
    } else {
      JZTREE_COUNT("block");
      collect_block<false>(0);
    }
    tile_begin_ = (tile_begin_ + List::block) & (tile_points - 1);
    tile_count_ -= List::block;
  }

  // Compute all distances first: loads from shared memory cannot be moved across the stores that follow. Crossed:
  // whether each pair has its image in some dimensions.
  template <bool Crossed>
  __device__ __forceinline__ void collect_block(unsigned crossed) {
    // More rows at once would need more registers.
    constexpr int max_rows = !Crossed ? List::block : W * sizeof(T) > 24 ? 4 : 8;
    constexpr int rows = max_rows < List::block ? max_rows : List::block;
    const Lift lift = list_.lift();
    T lifted[List::block];
    uint32_t labels[List::block];
#pragma unroll
    for (int first = 0; first < List::block; first += rows) {
      Tile points[rows];
      T sums[rows];
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        points[i] = tile_[tile_begin_ + first + i];
        labels[first + i] = points[i].label;
        if constexpr (Keyed) sums[i] = lift.lift;
      }
#pragma unroll
      for (int d = 0; d < W; ++d) {
        T differences[rows];
#pragma unroll
        for (int i = 0; i < rows; ++i) differences[i] = at_[d] - points[i].x[d];
        if (Crossed && crossed >> d & 1) choose_images(d, points, differences);
#pragma unroll
        for (int i = 0; i < rows; ++i) {
          if constexpr (Keyed) {
            // Fused, because the roundings do not matter.
            sums[i] = std::fma(differences[i], differences[i], sums[i]);
          } else {
            const T square = differences[i] * differences[i];
            sums[i] = d == 0 ? square : sums[i] + square;
          }
        }
      }
#pragma unroll
      for (int i = 0; i < rows; ++i) lifted[first + i] = sums[i];
    }
#pragma unroll
    for (int i = 0; i < List::block; ++i) collect(lift, lifted[i], labels[i]);
  }

  // Replace straight differences in a dimension by differences to the nearest images. This has the bits of
  // wrapped_difference: a shift is only needed for a coordinate in the upper half, either of the query or of the row.
  template <int N>
  __device__ __forceinline__ void choose_images(int d, const Tile (&points)[N], T (&differences)[N]) const {
    JZTREE_COUNT("crossed dimension");
    const T period = scale_.period[d], rest = scale_.period_rest[d], half = period / 2;
    const bool is_upper = at_[d] > half;
    const T query = is_upper ? shifted_down(at_[d], period, rest) : at_[d];
    const T shift = is_upper ? T{0} : period, shift_rest = is_upper ? T{0} : rest;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const T around = query - shifted_down(points[i].x[d], shift, shift_rest);
      if (std::fabs(differences[i]) > half) differences[i] = around;
    }
  }

  // The same if positions have rounding errors. This is rare, so the loop is short and takes few registers.
  __device__ __forceinline__ void collect_block_by_pairs() {
    T query_rest[W] = {}, point_rest[W] = {};
    tile_rests(query_rest, point_rest);
#pragma unroll 1
    for (int i = 0; i < List::block; ++i) {
      const Tile point = tile_[tile_begin_ + i];
      T row_rest[W];
#pragma unroll
      for (int d = 0; d < W; ++d) row_rest[d] = __shfl_sync(all_lanes, point_rest[d], i);
      const T distance = distance2<W, true>(scale_, at_, point.x, query_rest, row_rest);
      collect(list_.lift(), List::lifted(list_.lift(), distance), point.label);
    }
  }

  __device__ __forceinline__ void collect(const Lift& lift, T lifted, uint32_t label) {
    if (!(lifted <= lifted_limit_ && (!Repeated || lifted >= last_.distance2()))) return;
    *next_ = List::item(lift, lifted, label);
    next_ += warp_size;
  }

  // The rounding errors of the lane's query and of the lane's point of the next block.
  __device__ __forceinline__ void tile_rests(T* query_rest, T* point) const {
    frame_.staging.find_rests(problem_.queries, query_, query_rest);
    if (lane_index() >= List::block) return;
    const Tile& staged = tile_[tile_begin_ + lane_index()];
    if (staged.x[0] == staged.x[0]) frame_.staging.find_rests(problem_.sources, list_.row_of(staged.label), point);
  }

  // Every lane absorbs up to one batch of its collected candidates, the last ones. A query that is its own neighbour is
  // in its list from the start.
  __device__ __forceinline__ void absorb_batch(bool searches) {
    JZTREE_COUNT("absorb");
    if (limits_.each) reject_beyond();
    Item* const first = collected_ + lane_index();
    // Differences of pointers would hide from the compiler that they point to shared memory.
    const Item* const end = next_;
    next_ = end > first + List::batch * warp_size ? next_ - List::batch * warp_size : first;
    Item others[List::batch];
    const uint32_t own_label = list_.own_label();
#pragma unroll
    for (int i = 0; i < List::batch; ++i) {
      others[i] = next_[i * warp_size];
      bool is_other = next_ + i * warp_size < end && !List::has_label(others[i], own_label);
      if constexpr (Repeated) is_other &= last_ < others[i];
      others[i] = choose(is_other, others[i], List::none());
    }
    list_.absorb(others);
    set_bound(searches && !list_.is_lost(), list_.bound());
  }

  __device__ const Within<T>* limit() const { return limits_.of(problem_.out_row(query_)); }
  __device__ T limit2() const { return limits_.each ? limit()->possibly2 : std::numeric_limits<T>::infinity(); }

  // Among the candidates of the next batch, replace those outside the limit by candidates that sort last.
  __device__ __forceinline__ void reject_beyond() {
    JZTREE_COUNT("reject beyond");
    Item* const first = collected_ + lane_index();
#pragma unroll 1
    for (int i = 1; i <= List::batch; ++i) {
      Item* const item = next_ - i * warp_size;
      if (item < first) break;
      const Candidate<T> candidate = list_.candidate(*item);
      if (is_beyond(problem_, limits_, *limit(), candidate.distance2(), query_, candidate.row_plus_one() - 1))
        *item = List::none();
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
      // Rounded down, the distance of rows at different places may be less than that.
      if (Keyed) found = Candidate<T>::make(0, found.row_plus_one());
      is_exact = is_precise(problem_, scale_, found, query_);
    }
    return is_exact;
  }

  // Neighbouring lanes write to neighbouring addresses.
  __device__ __forceinline__ void write(unsigned lanes) {
    const int k = count_, inverse = (1 << 20) / k + 1;
    auto out_row = static_cast<uint32_t>(lanes >> lane_index() & 1 ? problem_.out_row(query_) : 0);
#pragma unroll 1
    for (int item = lane_index(); item < warp_size * k; item += warp_size) {
      JZTREE_COUNT("write");
      int lane = item * inverse >> 20, place = item - lane * k;  // quotient and remainder of item / k, for items below
                                                                 // 2^11
      int64_t row = __shfl_sync(all_lanes, out_row, lane), self_row = __shfl_sync(all_lanes, self_row_, lane);
      if (lanes >> lane & 1)
        problem_.write(row * problem_.k + first_ + place, self_row, list_.row_plus_one(lane, K - k + place));
    }
    __syncwarp();
  }

  const Problem<From>& problem_;
  const StagedRow<W, T>* rows_;
  const Scale<W, T>& scale_;
  const Limits<W, T>& limits_;
  const bool wrapped_;
  const uint32_t stops_;
  Frame& frame_;
  Tile* tile_;
  Item* collected_;
  List list_;
  StackEntry<T>* stack_;
  Wanted<2, T> wanted_;
  T lifted_limit_, at_[W];  // at_: the query
  T around2_;               // lanes below 2 W: up to this squared distance, rows are nearest straight in a dimension
  Item* next_;              // past the lane's last collected candidate
  const Item* most_collected_;  // the list absorbs candidates before `next_` is past it
  bool second_;                 // whether the query belongs to the second box of the group
  bool query_rests_;            // whether any query has a rounding error
  Candidate<T> last_;           // the last neighbour that earlier searches found
  int first_, count_;           // the neighbours of this search: their place among all, and their number
  int self_row_, tile_begin_, tile_count_;
  unsigned crossed_;  // the dimensions in which rows within the bounds may be nearest around the boundary
  unsigned images_;   // `images_of` the rows of the tile
  uint32_t query_;
};

// rows: the staged sources. Padding rows remain unset.
template <int W, typename From, typename T>
__global__ void stage_rows(const __grid_constant__ Problem<From> problem, const Scale<W, T>* scale,
                           StagedRow<W, T>* rows) {
  const int64_t row = thread_index();
  if (row >= problem.sources.num()) return;
  const Staging<W, From, T> staging(*scale);
  StagedRow<W, T> staged;
  staging.point(problem.sources, static_cast<uint32_t>(row), staged.x);
  T errors[W];
  const bool is_rounded =
      *problem.wrapped != 0 && staging.find_rests(problem.sources, static_cast<uint32_t>(row), errors);
  staged.label = is_rounded ? has_rests : 0;
  rows[row] = staged;
}

// again: the queries to answer; empty: all queries of the problem.
template <int W, int K, typename From, typename T, bool Repeated, bool Keyed>
__global__ void __launch_bounds__(short_search_threads, (short_search_blocks<W, K, T, Keyed>))
    search_short(const __grid_constant__ Problem<From> problem, const StagedRow<W, T>* rows, const Scale<W, T>* scale,
                 const __grid_constant__ Limits<W, T> limits, int64_t warp_bytes, uint32_t stops, Unanswered again,
                 Unanswered unanswered) {
  const int width = queries_per_warp(problem.count(), problem.sources.num());
  const auto groups = static_cast<uint32_t>(again.count ? *again.count : (problem.count() + width - 1) / width);
  const auto warp = static_cast<uint32_t>(thread_index() / warp_size), warps = gridDim.x * blockDim.x / warp_size;
  if (warp >= groups) return;  // before it reads the scale: there may be more warps than groups
  JZTREE_COUNT("warp");
  ShortSearch<W, K, From, T, Repeated, Keyed> search(problem, rows, *scale, limits,
                                                     dynamic_shared() + threadIdx.x / warp_size * warp_bytes, stops);
  for (uint32_t group = warp; group < groups; group += warps) {
    JZTREE_COUNT("answer");
    const uint32_t first = again.count ? again.first[group] : group * static_cast<uint32_t>(width);
    const unsigned lanes = again.count ? again.lanes[group] : all_lanes >> (warp_size - width);
    unsigned imprecise = search.answer(first, lanes);
    if (imprecise != 0 && lane_index() == 0) unanswered.add(first, imprecise);
  }
}

}  // namespace jztree
