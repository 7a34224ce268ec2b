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

template <int D, typename T>
struct LinkSetup : BoxSetup<D, T> {
  LinkRule<D, T> rule;

  __device__ LinkSetup(const Lengths& box, const DeviceTree<D, T>& tree, const int32_t* any_wrapped,
                       const Lengths& rlink)
      : BoxSetup<D, T>(box, tree, tree, any_wrapped), rule(rlink[0], this->distance_rule()) {}
};

// A warp's work on rows of two leaves, up to 32 of each: one row per lane, against rows in shared memory that all lanes
// read at once.
template <int D, typename T>
class RowTester {
 public:
  // shared: space for one point per lane.
  __device__ RowTester(const T* pos, const LinkSetup<D, T>& setup, RowPoint<D, T>* shared)
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

  // The lanes whose points may be linked to a particle in the box.
  __device__ unsigned near_box(const RowPoint<D, T>& point, bool used, const NodeBox<D, T>& box) const {
    return __ballot_sync(all_lanes,
                         used && least_distance2(point.x, point.x, box, setup_.gap_period) <= setup_.rule.possibly2);
  }

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
    if (around) {
      test<true>(point, staged, &surely, &possibly);
    } else {
      test<false>(point, staged, &surely, &possibly);
    }
    if (!used) return 0;
    unsigned unsure = possibly & ~surely;
    if (any_one && surely) return surely;
    while (unsure) {
      int bit = __ffs(static_cast<int>(unsure)) - 1;
      unsure &= unsure - 1;
      if (setup_.rule.linked_exactly(given(rows + lane_index()), given(staged_rows + bit))) surely |= 1u << bit;
    }
    return surely;
  }

 private:
  __device__ const T* given(uint32_t row) const { return pos_ + static_cast<int64_t>(row) * D; }

  template <bool Around>
  __device__ void test(const RowPoint<D, T>& point, unsigned staged, unsigned* surely, unsigned* possibly) const {
    for (; staged; staged &= staged - 1) {
      int bit = __ffs(static_cast<int>(staged)) - 1;
      const RowPoint<D, T> other = shared_[bit];
      T distance2 = squared_distance<Around>(point, other, setup_.scale);
      *surely |= static_cast<unsigned>(distance2 < setup_.rule.surely2) << bit;
      *possibly |= static_cast<unsigned>(distance2 <= setup_.rule.possibly2) << bit;
    }
  }

  const T* pos_;
  const LinkSetup<D, T>& setup_;
  RowPoint<D, T>* shared_;
};

}  // namespace jztree
