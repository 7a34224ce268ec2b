// What friends-of-friends asks about boxes and rows: lower bounds of distances, and which rows of two leaves are
// linked, 32 by 32.
#pragma once

#include <cstdint>
#include <limits>

#include "common/cuda/tree.cuh"
#include "common/cuda/warp.cuh"
#include "common/geometry.h"
#include "common/morton.h"
#include "common/scale.h"
#include "link_rule.h"

namespace jztree {

// What kernels need to know of box and linking length, which lie on the GPU.
template <int D, typename T>
struct LinkSetup {
  Scale<D, T> scale;
  LinkRule<D, T> rule;
  bool wrapped;
  T gap_period[D];  // for lower bounds: "around the boundary" is rounded in the last bit of the period

  __device__ LinkSetup(const double* box, double open_extent, double rlink, bool any_wrapped)
      : scale(box, open_extent),
        // Only what is scaled down can become 0.
        rule(rlink, any_wrapped, scale.factor >= 1, scale),
        wrapped(any_wrapped) {
    for (int d = 0; d < D; ++d) gap_period[d] = scale.period[d] * below_one<T>;
  }
};

// A copy in shared memory, where it costs no registers; for all threads of the block. memory: sizeof(LinkSetup) bytes.
template <int D, typename T>
__device__ inline const LinkSetup<D, T>& share_setup(const LinkSetup<D, T>* setup, unsigned char* memory) {
  for (unsigned i = threadIdx.x; i < sizeof(LinkSetup<D, T>) / sizeof(uint32_t); i += blockDim.x)
    reinterpret_cast<uint32_t*>(memory)[i] = reinterpret_cast<const uint32_t*>(setup)[i];
  __syncthreads();
  return *reinterpret_cast<const LinkSetup<D, T>*>(memory);
}

// Scaled, and wrapped where periodic.
template <int D, typename T>
struct NodeBox {
  T low[D], high[D];

  __device__ T extent() const {
    T widest = 0;
    for (int d = 0; d < D; ++d) widest = larger<T>(widest, high[d] - low[d]);
    return widest;
  }
};

// Aligned so that the GPU reads a row from shared memory at once.
template <int D, typename T>
struct alignas(D * sizeof(T) <= 4   ? 4
               : D * sizeof(T) <= 8 ? 8
                                    : 16) RowPoint {
  T x[D];
};

// Chosen number by number: a choice between two places would put both in memory.
template <int D, typename T>
__device__ inline RowPoint<D, T> either(bool first, const RowPoint<D, T>& a, const RowPoint<D, T>& b) {
  RowPoint<D, T> out;
  for (int d = 0; d < D; ++d) out.x[d] = first ? a.x[d] : b.x[d];
  return out;
}

template <int D, typename T>
__device__ inline NodeBox<D, T> load_box(const DeviceTree<D, T>& tree, int64_t node, T factor) {
  NodeBox<D, T> box;
  for (int d = 0; d < D; ++d) {
    box.low[d] = tree.lower[node * D + d] * factor;
    box.high[d] = tree.upper[node * D + d] * factor;
  }
  return box;
}

// At most the squared distance of anything in one box to anything in the other.
template <int D, typename T>
__device__ inline T least_distance2(const T* alow, const T* ahigh, const NodeBox<D, T>& b, const T* gap_period) {
  T sum = 0;
  for (int d = 0; d < D; ++d) {
    T gap = interval_gap<T>(alow[d], ahigh[d], b.low[d], b.high[d], gap_period[d]);
    sum += gap * gap;
  }
  return sum * below_one<T>;
}

// Whether plain differences are not those of the nearest images for all pairs of two boxes.
template <int D, typename T>
__device__ inline bool wraps_around(const NodeBox<D, T>& a, const NodeBox<D, T>& b, const Scale<D, T>& scale) {
  bool around = false;
  if (scale.periodic)
    for (int d = 0; d < D; ++d)
      around |= nearest_image(a.low[d], a.high[d], b.low[d], b.high[d], scale.period[d]) != Image::same;
  return around;
}

// A warp's work on rows of two leaves, up to 32 of each: one row a lane, against rows in shared memory that all lanes
// read at once.
template <int D, typename T>
class RowTester {
 public:
  // shared: room for one point a lane.
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

  // Which lanes' points are possibly linked to something in the box.
  __device__ unsigned near_box(const RowPoint<D, T>& point, bool used, const NodeBox<D, T>& box) const {
    return __ballot_sync(all_lanes,
                         used && least_distance2(point.x, point.x, box, setup_.gap_period) <= setup_.rule.possibly2);
  }

  // The warp's points become those that lanes are tested against.
  __device__ void stage(const RowPoint<D, T>& point) {
    __syncwarp();
    shared_[lane_index()] = point;
    __syncwarp();
  }

  // Which of the staged points (bits of `staged`) the lane's is linked to. rows, staged_rows: the rows of lane 0's
  // point and of the first that is staged. any_one: one link of any lane is enough, as long as it is found.
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
      T distance2 = 0;
      for (int d = 0; d < D; ++d) {
        T difference = point.x[d] - other.x[d];
        if (Around)
          difference =
              wrapped_difference<T>(point.x[d], other.x[d], setup_.scale.period[d], setup_.scale.period_rest[d]);
        distance2 += difference * difference;
      }
      *surely |= static_cast<unsigned>(distance2 < setup_.rule.surely2) << bit;
      *possibly |= static_cast<unsigned>(distance2 <= setup_.rule.possibly2) << bit;
    }
  }

  const T* pos_;
  const LinkSetup<D, T>& setup_;
  RowPoint<D, T>* shared_;
};

}  // namespace jztree
