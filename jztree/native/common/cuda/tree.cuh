// A hierarchy in the form used by kernels, and the scale of distances in it.
#pragma once

#include <cstdint>
#include <limits>

#include "common/geometry.h"
#include "common/morton.h"
#include "common/scale.h"
#include "common/tree_arguments.h"
#include "queue.cuh"
#include "warp.cuh"

namespace jztree {

// Passed to kernels by value. Nodes are identified by their index in the flat arrays; each earlier plane shifts a
// plane's splits by one extra place.
template <typename T>
struct TreeView {
  const T* pos;  // (n, dims), z-ordered, unchanged input
  int dims;
  Count num;
  const int32_t *splits, *particle_splits;
  const T *lower, *upper;  // (nodes, dims), of wrapped positions
  int planes;
  int64_t starts[most_planes + 1];  // first node of each plane, and the end

  JZTREE_BOTH int64_t leaves() const { return starts[1]; }
  // First row of a node of a plane; the first row of the next node is its end.
  __device__ int64_t first_row(int plane, int64_t node) const { return particle_splits[node + plane]; }
  // First child of a node of a plane above the leaves.
  __device__ int64_t first_child(int plane, int64_t node) const { return starts[plane - 1] + splits[node + plane]; }
  __device__ int64_t leaf_row(int64_t leaf) const { return particle_splits[leaf]; }
};

// The same with a compile-time number of dimensions.
template <int D, typename T>
struct DeviceTree : TreeView<T> {};

template <int D, typename T>
DeviceTree<D, T> on_device(const Tree<D, T>& tree) {
  DeviceTree<D, T> view{
      {tree.pos, D, tree.num, tree.splits, tree.particle_splits, tree.lower, tree.upper, tree.layout.planes(), {}}};
  for (size_t i = 0; i < tree.layout.starts.size(); ++i) view.starts[i] = tree.layout.starts[i];
  return view;
}

// Extend [low, high] to the extent of the top plane in a dimension. Run by one warp.
template <typename T>
__device__ void top_extent(const TreeView<T>& tree, int d, double* low, double* high) {
  for (int64_t node = tree.starts[tree.planes - 1] + lane_index(); node < tree.starts[tree.planes]; node += warp_size) {
    double lower = static_cast<double>(tree.lower[node * tree.dims + d]);
    double upper = static_cast<double>(tree.upper[node * tree.dims + d]);
    *low = lower < *low ? lower : *low;
    *high = upper > *high ? upper : *high;
  }
  *low = warp_min(*low);
  *high = warp_max(*high);
}

// The span of the top planes of two hierarchies in open dimensions. Run by one warp.
template <int D, typename T>
__device__ OpenSpan open_span(const double* box, const DeviceTree<D, T>& a, const DeviceTree<D, T>& b) {
  OpenSpan span;
  for (int d = 0; d < D; ++d) {
    double low = std::numeric_limits<double>::infinity(), high = -low;
    top_extent(a, d, &low, &high);
    top_extent(b, d, &low, &high);
    if (!(box[d] > 0)) span.include(low, high);
  }
  return span;
}

// The scale of distances between the particles of two hierarchies. Run by one warp. T: the type of the distances.
template <typename T, int D, typename From>
__device__ Scale<D, T> scale_between(const Lengths& box, const DeviceTree<D, From>& a, const DeviceTree<D, From>& b) {
  double period[D];
  box.read(period);
  return Scale<D, T>(period, open_span(period, a, b).template for_scale<T>());
}

}  // namespace jztree
