// Box and row tests of friends-of-friends: lower bounds of distances, and the links between the rows of two leaves, 32
// by 32.
#pragma once

#include <cstdint>
#include <limits>

#include "common/cuda/boxes.cuh"
#include "common/cuda/share.cuh"
#include "common/cuda/tree.cuh"
#include "common/cuda/warp.cuh"
#include "common/geometry.h"
#include "common/morton.h"
#include "common/scale.h"
#include "link_rule.h"

namespace jztree {

// Rule: see link_rule.h.
template <int D, typename T, typename Rule>
struct LinkSetup : BoxSetup<D, T> {
  Rule rule;

  __device__ LinkSetup(const Lengths& box, const DeviceTree<D, T>& tree, const int32_t* any_wrapped,
                       const LinkLengths<T>& lengths)
      : BoxSetup<D, T>(box, tree, tree, any_wrapped), rule(lengths, this->distance_rule()) {}

  // Whether all pairs of particles of two boxes are surely linked. half, other: the smallest half in each.
  __device__ bool all_linked(const T* alow, const T* ahigh, typename Rule::Half half, const NodeBox<D, T>& b,
                             typename Rule::Half other) const {
    return rule.all_within(alow, ahigh, b.low, b.high, this->scale.period, rule.surely_linked2(half, other));
  }
  // The same for a node and itself.
  __device__ bool is_dense(const NodeBox<D, T>& box, int64_t node) const {
    return all_linked(box.low, box.high, rule.least_of(node), box, rule.least_of(node));
  }
};

// A warp's work on rows of two leaves, up to 32 of each: one row per lane, against rows in shared memory that all lanes
// read at once.
template <int D, typename T, typename Rule>
class RowTester {
 public:
  using Half = typename Rule::Half;

  // shared: space for one point per lane.
  __device__ RowTester(const T* pos, const LinkSetup<D, T, Rule>& setup, RowPoint<D, T>* shared)
      : pos_(pos), setup_(setup), shared_(shared) {}

  __device__ RowPoint<D, T> load(uint32_t row) const {
    RowPoint<D, T> point;
    for (int d = 0; d < D; ++d) {
      T x = given(row)[d];
      if (setup_.wrapped) x = wrap(x, setup_.scale.raw_period[d]);
      point.x[d] = x * setup_.scale.factor;
    }
    return point;
  }

  // The lanes whose points may be linked to a particle in the box. rows: the row of lane 0; half: the largest half in
  // the box.
  __device__ unsigned near_box(const RowPoint<D, T>& point, bool used, uint32_t rows, const NodeBox<D, T>& box,
                               Half half) const {
    bool reached = used && least_distance2(point.x, point.x, box, setup_.gap_period) <=
                               setup_.rule.possibly_linked2(half_of(rows), half);
    return __ballot_sync(all_lanes, reached);
  }

  // The half of this lane's row.
  __device__ Half half_of(uint32_t rows) const { return setup_.rule.of_row(static_cast<int64_t>(rows) + lane_index()); }

  // Stage the warp's points, so that lanes are tested against them.
  __device__ void stage(const RowPoint<D, T>& point) {
    __syncwarp();
    shared_[lane_index()] = point;
    __syncwarp();
  }

  // Return the staged points that are linked to the lane's point. staged: one bit per staged point. rows, staged_rows:
  // the rows of lane 0's point and of the first staged point. any_one: whether the caller needs only one link of any
  // lane.
  __device__ unsigned links(const RowPoint<D, T>& point, bool used, unsigned staged, bool around, uint32_t rows,
                            uint32_t staged_rows, bool any_one) const {
    unsigned surely = 0, possibly = 0;
    const Half half = used ? half_of(rows) : Half{};
    if (around) {
      test<true>(point, half, staged, staged_rows, &surely, &possibly);
    } else {
      test<false>(point, half, staged, staged_rows, &surely, &possibly);
    }
    if (!used) return 0;
    unsigned unsure = possibly & ~surely;
    if (any_one && surely) return surely;
    while (unsure) {
      int bit = __ffs(static_cast<int>(unsure)) - 1;
      unsure &= unsure - 1;
      const uint32_t row = rows + lane_index(), other = staged_rows + bit;
      if (setup_.rule.linked_exactly(given(row), given(other), row, other)) surely |= 1u << bit;
    }
    return surely;
  }

 private:
  __device__ const T* given(uint32_t row) const { return pos_ + static_cast<int64_t>(row) * D; }

  template <bool Around>
  __device__ void test(const RowPoint<D, T>& point, Half half, unsigned staged, uint32_t staged_rows, unsigned* surely,
                       unsigned* possibly) const {
    for (; staged; staged &= staged - 1) {
      int bit = __ffs(static_cast<int>(staged)) - 1;
      const RowPoint<D, T> other = shared_[bit];
      const Half other_half = setup_.rule.of_row(static_cast<int64_t>(staged_rows) + bit);
      T distance2 = squared_distance<Around>(point, other, setup_.scale);
      *surely |= static_cast<unsigned>(distance2 < setup_.rule.surely_linked2(half, other_half)) << bit;
      *possibly |= static_cast<unsigned>(distance2 <= setup_.rule.possibly_linked2(half, other_half)) << bit;
    }
  }

  const T* pos_;
  const LinkSetup<D, T, Rule>& setup_;
  RowPoint<D, T>* shared_;
};

}  // namespace jztree
