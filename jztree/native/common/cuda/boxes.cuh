// Boxes of nodes and points of rows, as kernels ask about distances between them.
#pragma once

#include <cstdint>

#include "common/geometry.h"
#include "common/scale.h"
#include "tree.cuh"

namespace jztree {

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

}  // namespace jztree
