// The walk of a warp through the hierarchy of the sources, for kernel sums (kernel_sums.h) at up to 32 queries, one per
// lane. kernel_walk.h explains the computation.
//
// A step tests 32 nodes, one per lane. If a leaf is opened, its particles that may be within a smoothing length of the
// queries' box go to shared memory side by side, and each lane loops over them. A source that is too far away is
// skipped before any division. Each lane has its own float64 sums in shared memory and adds to them in the order of
// rows, so they have the same bits in every run.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "common/cuda/node_stack.cuh"
#include "common/cuda/warp.cuh"
#include "kernel_problem.cuh"

namespace jztree {

// Whether a source is within the smoothing length, by the rule of all searches. Not inlined, because it needs a large
// number of registers.
template <int D, typename T, typename From>
JZTREE_APART bool is_within_as_given(const KernelProblem<D, T, From>& in, const DistanceRule<D, T>& rule, int64_t query,
                                     int64_t source) {
  T a[D], b[D];
  for (int d = 0; d < D; ++d) {
    a[d] = static_cast<T>(in.queries.pos[query * D + d]);
    b[d] = static_cast<T>(in.sources.pos[source * D + d]);
  }
  return rule.is_within_exactly(a, b, ExactRadius(in.lengths.of_pair(query, source)));
}

template <int D, typename T, typename From, int Order>
class KernelWalk {
 public:
  using Problem = KernelProblem<D, T, From>;

  // Shared memory of a warp, for `sums` sums per query.
  JZTREE_BOTH static constexpr int shared_bytes(int planes, int sums) {
    return sums * sum_bytes + source_bytes + NodeStack::bytes(planes);
  }

  __device__ KernelWalk(const Problem& in, const KernelSetup<D, T>& setup, unsigned char* shared)
      : in_(in),
        setup_(setup),
        sums_(reinterpret_cast<double*>(shared) + lane_index()),
        sources_(*reinterpret_cast<Sources*>(shared + in.sums() * sum_bytes)),
        stack_(shared + in.sums() * sum_bytes + source_bytes) {}

  // Process the queries from `tile` on, before `end`.
  __device__ void run(int64_t tile, int64_t end) {
    query_ = tile + lane_index();
    used_ = query_ < end;
    for (int i = 0; i < in_.sums(); ++i) sums_[i * warp_size] = 0;
    if (used_) {
      point_ = load_point(in_.queries.pos, query_, setup_.scale);
      if (in_.lengths.of_query > 0) length_ = in_.lengths.staged_query(query_, setup_.scale);
    }
    box_ = box_of_lanes(point_, used_);
    largest_ = warp_max(length_);
    least_ = warp_min(used_ ? length_ : std::numeric_limits<T>::infinity());
    NodeRange range;
    for (stack_.begin(in_.sources); stack_.next(&range);) step(range);
  }

  // The lane's i-th sum, multiplied by the factors of the kernel.
  __device__ double sum(int i) const {
    double all = sums_[i * warp_size] * setup_.profile.norm;
    return over_powers(all, in_.lengths.query[query_], in_.form == KernelForm::scatter ? 0 : in_.powers,
                       in_.sum_powers);
  }

 private:
  struct Sources : StagedRows<D, T> {
    T length[warp_size];
  };
  // Distances of float32 positions in float64. One loop then serves all leaves, because the nearest image of a point
  // that needs no shift is the point itself.
  static constexpr bool is_rare = !std::is_same_v<T, From>;
  // Loops over padded dimensions are not unrolled: 64 components take long to compile.
  static constexpr int unrolled = D < max_dims ? D : 1;
  static constexpr int sum_bytes = warp_size * static_cast<int>(sizeof(double));
  static constexpr int source_bytes = (static_cast<int>(sizeof(Sources)) + 15) / 16 * 16;

  // The largest, or smallest, length of the sources of a node; 0 if source lengths do not count.
  __device__ T node_length(uint32_t node) const { return node_length(in_.node_h, node); }
  __device__ T node_length(const double* of_nodes, uint32_t node) const {
    if (!of_nodes) return 0;
    return scaled_length(of_nodes[node], setup_.scale) * in_.lengths.of_source;
  }

  // Whether kernels of this length may reach from one box to the other.
  __device__ bool reaches(const T* low, const T* high, const NodeBox<D, T>& other, T length) const {
    return least_distance2(low, high, other, setup_.gap_period) <= possibly_within2(length, setup_.rule);
  }

  // Test up to 32 nodes.
  __device__ void step(const NodeRange& range) {
    const LaneNode mine(in_.sources, range);
    bool reached = mine.has_rows(), whole = false, place = false;
    if (reached) {
      const NodeBox<D, T> box = load_box(in_.sources, mine.node, setup_.scale.factor);
      reached = reaches(box_.low, box_.high, box, largest_ + node_length(mine.node));
      const int32_t kind = reached ? in_.node_kind[mine.node] : NodeKind::unknown;
      whole = Order == 0 && in_.adds_nodes && kind != NodeKind::unknown && is_whole(mine.node, box);
      place = kind == NodeKind::place && !whole;
    }
    if constexpr (Order == 0)
      for (unsigned lanes = __ballot_sync(all_lanes, whole); lanes; lanes &= lanes - 1)
        add_node(__shfl_sync(all_lanes, mine.node, __ffs(static_cast<int>(lanes)) - 1));
    reached &= !whole;
    const unsigned places = __ballot_sync(all_lanes, place), leaves = range.plane == 0 ? ~0u : 0;
    for (unsigned lanes = (places | leaves) & __ballot_sync(all_lanes, reached); lanes; lanes &= lanes - 1) {
      const int lane = __ffs(static_cast<int>(lanes)) - 1;
      open_rows(__shfl_sync(all_lanes, mine.node, lane), __shfl_sync(all_lanes, mine.first, lane),
                __shfl_sync(all_lanes, mine.end, lane), places >> lane & 1);
    }
    if (range.plane > 0)
      stack_.push_children<true>(in_.sources, range.plane, mine.node, __ballot_sync(all_lanes, reached && !place));
  }

  // Whether the sources of a node are surely within the length of every query, so that a top hat has the same value for
  // each.
  __device__ bool is_whole(uint32_t node, const NodeBox<D, T>& box) const {
    const T shortest = node_length(in_.node_least_h, node);
    if (in_.form == KernelForm::mean && shortest != node_length(node)) return false;
    T reach2 = 0;
    for (int d = 0; d < D; ++d) {
      T reach = interval_reach(box_.low[d], box_.high[d], box.low[d], box.high[d], setup_.scale.period[d]);
      reach2 += reach * reach;
    }
    return reach2 * above_one<T> <= surely_within2(least_ + shortest, setup_.rule);
  }

  // Add the sums of such a node.
  __device__ void add_node(uint32_t node) {
    double value = static_cast<double>(setup_.radial.c0);
    if (in_.form == KernelForm::mean) value *= ratio_of_powers(1 / (length_ + node_length(node)));
    const double* sums = in_.node_sum + static_cast<int64_t>(node) * in_.columns + in_.first_column;
    for (int column = 0; column < in_.at_work; ++column) sums_[column * warp_size] += sums[column] * value;
  }

  // as_one: the node's sources are at one point. Its first row represents all rows, and the sums of the node are its
  // values.
  __device__ void open_rows(uint32_t node, uint32_t first, uint32_t end, bool as_one) {
    NodeBox<D, T> box = load_box(in_.sources, node, setup_.scale.factor);
    bool around = wraps_around(box_, box, setup_.scale);
    if (in_.images && !around && !setup_.wrapped) return;
    bool reached = used_ && reaches(point_.x, point_.x, box, length_ + node_length(node));
    if (!__any_sync(all_lanes, reached)) return;
    if (as_one) end = first + 1;
    first_ = first;
    values_ = (as_one ? in_.node_sum + static_cast<int64_t>(node) * in_.columns * in_.inner
                      : in_.value + static_cast<int64_t>(first) * in_.columns * in_.inner) +
              in_.first_column * in_.inner;
    for (uint32_t tile = first; tile < end; tile += warp_size) {
      int count = take(tile, end);
      if (!reached) continue;
      around ? add_sources<true>(count) : add_sources<is_rare>(count);
    }
  }

  // Copy sources to shared memory, except those that are near no query. Returns the number of copied rows.
  __device__ int take(uint32_t tile, uint32_t end) {
    T length = 0;
    return sources_.take(
        in_.sources.pos, tile, end, setup_.scale,
        [&](uint32_t row, const RowPoint<D, T>& point) {
          if (in_.lengths.of_source > 0) length = in_.lengths.staged_source(row, setup_.scale);
          return reaches(point.x, point.x, box_, largest_ + length);
        },
        [&](int place) { sources_.length[place] = length; });
  }

  // A query and a source near it.
  struct Pair {
    uint32_t row;
    T apart[D], inverse, q2;  // inverse: of the smoothing length
  };

  template <bool Around>
  __device__ void add_sources(int count) {
    for (int i = 0; i < count; ++i) {
      const RowPoint<D, T> other = sources_.point[i];
      const T length = length_ + sources_.length[i];
      Pair pair;
      T distance2 = 0;
      for (int d = 0; d < D; ++d) {
        pair.apart[d] = difference<Around>(point_, other, d, setup_.scale);
        distance2 += pair.apart[d] * pair.apart[d];
      }
      if (distance2 > possibly_within2(length, setup_.rule)) continue;
      pair.row = sources_.row[i];
      if (setup_.wrapped) distance2 = add_rests(pair);
      pair.inverse = 1 / length;
      pair.q2 = distance2 * pair.inverse * pair.inverse;
      if (is_within(pair)) add(pair);
    }
  }

  // Add the rounding errors of wrapped positions. Returns the squared distance. This order of operations makes the
  // first sum exact next to a face.
  __device__ T add_rests(Pair& pair) const {
    T distance2 = 0;
    for (int d = 0; d < D; ++d) {
      const double period = setup_.scale.raw_period[d];
      T query_rest = rest_of_wrap(in_.queries.pos[query_ * D + d], period, setup_.scale.factor);
      T source_rest =
          rest_of_wrap(in_.sources.pos[static_cast<int64_t>(pair.row) * D + d], period, setup_.scale.factor);
      pair.apart[d] = (pair.apart[d] + query_rest) - source_rest;
      distance2 += pair.apart[d] * pair.apart[d];
    }
    return distance2;
  }

  // If this precision cannot decide and the result matters, float64 decides, like for links. q2 is then limited to 1.
  __device__ bool is_within(Pair& pair) const {
    if (setup_.profile.jumps()) {
      const UnitBounds<T> bounds(pair.inverse, setup_.rule);
      if (pair.q2 > bounds.surely && pair.q2 <= bounds.possibly) {
        if (!is_within_as_given(in_, setup_.rule, query_, pair.row)) return false;
        pair.q2 = smaller<T>(pair.q2, 1);
      }
    }
    return pair.q2 <= 1;
  }

  // Add the derivatives of the kernel, times the values.
  __device__ void add(const Pair& pair) {
    const T q2 = pair.q2, q = std::sqrt(q2);
    const double over = in_.form == KernelForm::mean ? ratio_of_powers(pair.inverse) : 1;
    const double* values = values_ + static_cast<int64_t>(pair.row - first_) * in_.columns * in_.inner;
    if constexpr (Order == 0) {
      add_component(setup_.radial.template operator()<0>(setup_.profile, q, q2) * over, values, 0, 0);
    } else {
      T u[D];
      for (int d = 0; d < D; ++d) u[d] = pair.apart[d] * pair.inverse;
      if constexpr (Order == 1) {
        T radial = setup_.radial.template operator()<1>(setup_.profile, q, q2);
#pragma unroll unrolled
        for (int d = 0; d < D; ++d)
          if (d < in_.dims)
            add_component(static_cast<double>(radial * u[d]) * over * image_weight(pair, d), values, 0, d);
      } else {
        T first = setup_.profile.template part<1>(q, q2), second = setup_.profile.template part<2>(q, q2);
        // At distance 0, the second term is 0 times an undefined direction.
        second = q2 > 0 ? second / q2 : T{0};
#pragma unroll unrolled
        for (int e = 0; e < D; ++e) {
          if (e >= in_.dims) continue;
          const double weight = over * image_weight(pair, e);
#pragma unroll unrolled
          for (int d = 0; d < D; ++d) {
            if (d >= in_.dims) continue;
            T component = second * u[d] * u[e];
            add_component(static_cast<double>(d == e ? component + first : component) * weight, values, d, e);
          }
        }
      }
    }
  }

  // The kernel multiplies all sums of a query by powers of the query's length. With a mean length, these powers are
  // wrong by the ratio of both lengths; this corrects them. It computes in float64, because powers of the ratio of two
  // very different lengths are far below the range of float32.
  __device__ double ratio_of_powers(T inverse) const {
    double ratio = static_cast<double>(inverse * (length_ * 2)), all = 1;
    for (int i = 0; i < in_.powers; ++i) all *= ratio;
    return all;
  }

  // The image shift of the source, in periods, if it counts.
  __device__ double image_weight(const Pair& pair, int d) const {
    if (!in_.images) return 1;
    const double period = setup_.scale.raw_period[d];
    if (!(period > 0)) return 0;
    double straight = static_cast<double>(in_.queries.pos[query_ * D + d]) -
                      static_cast<double>(in_.sources.pos[static_cast<int64_t>(pair.row) * D + d]);
    return std::nearbyint((straight - static_cast<double>(pair.apart[d] * setup_.scale.inverse)) / period);
  }

  // Add the derivative by the components d and e for all columns. The first `inward` components are inward.
  __device__ void add_component(double derivative, const double* values, int d, int e) {
    if (derivative == 0) return;  // even if values are infinite or NaN
    int in = 0, out = e;
    if (Order == 1 && in_.inward == 1) in = e, out = 0;
    if (Order == 2 && in_.inward == 0) out = d * in_.dims + e;
    if (Order == 2 && in_.inward == 1) in = d;
    if (Order == 2 && in_.inward == 2) in = d * in_.dims + e, out = 0;
    double* sums = sums_ + out * warp_size;
    for (int column = 0; column < in_.at_work; ++column)
      sums[column * in_.outer * warp_size] += values[column * in_.inner + in] * derivative;
  }

  const Problem& in_;
  const KernelSetup<D, T>& setup_;
  double* sums_;  // of the lane, every 32nd element
  Sources& sources_;
  NodeStack stack_;
  // The lane's query, and the data of the warp's queries.
  int64_t query_ = 0;
  bool used_ = false;
  RowPoint<D, T> point_{};
  T length_ = 0, largest_ = 0, least_ = 0;
  NodeBox<D, T> box_;
  // The current sources.
  uint32_t first_ = 0;              // their first row
  const double* values_ = nullptr;  // of that row, starting at the first current column
};

}  // namespace jztree
