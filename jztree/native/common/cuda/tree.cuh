// A hierarchy as kernels see it, and the scale of distances in it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "common/geometry.h"
#include "common/morton.h"
#include "common/scale.h"
#include "common/tree_layout.h"
#include "arguments.cuh"
#include "queue.cuh"
#include "warp.cuh"

namespace jztree {

// More planes than 2^31 rows can have: a plane above has at most about half the nodes of the plane below.
constexpr int most_planes = 32;

// Passed to kernels by value. Nodes are known by their place in the flat arrays; splits of a plane start one place
// later for every plane before it.
template <typename T>
struct TreeView {
  const T* pos;  // (n, dims), z-ordered, as the caller gave them
  int dims;
  Count num;
  const int32_t *splits, *particle_splits;
  const T *lower, *upper;  // (nodes, dims), of wrapped positions
  int planes;
  int64_t starts[most_planes + 1];  // first node of each plane, and the end

  JZTREE_BOTH int64_t leaves() const { return starts[1]; }
  // First row of a node of a plane; that of the next node is its end.
  __device__ int64_t first_row(int plane, int64_t node) const { return particle_splits[node + plane]; }
  // First child of a node of a plane above the leaves.
  __device__ int64_t first_child(int plane, int64_t node) const { return starts[plane - 1] + splits[node + plane]; }
  __device__ int64_t leaf_row(int64_t leaf) const { return particle_splits[leaf]; }
};

// The same with the number of dimensions known to the compiler.
template <int D, typename T>
struct DeviceTree : TreeView<T> {};

// Nothing if shapes or dtypes do not fit together. Whether the values do, jztree_belongs finds out.
template <int D, typename T>
std::optional<DeviceTree<D, T>> read_tree(const ffi::AnyBuffer& pos, const ffi::Buffer<ffi::S32>& num,
                                          const ffi::Buffer<ffi::S32>& splits,
                                          const ffi::Buffer<ffi::S32>& particle_splits, const ffi::AnyBuffer& lower,
                                          const ffi::AnyBuffer& upper, ffi::Span<const int64_t> plane_sizes) {
  TreeLayout layout(plane_sizes);
  auto shape = pos.dimensions();
  auto fits = [](const auto& buffer, int64_t count) { return static_cast<int64_t>(buffer.element_count()) == count; };
  if (shape.size() != 2 || shape[1] != D || pos.element_type() != (sizeof(T) == sizeof(float) ? ffi::F32 : ffi::F64) ||
      lower.element_type() != pos.element_type() || upper.element_type() != pos.element_type() ||
      !fits(splits, layout.splits()) || !fits(particle_splits, layout.splits()) || !fits(lower, layout.nodes() * D) ||
      !fits(upper, layout.nodes() * D) || layout.planes() > most_planes)
    return std::nullopt;
  DeviceTree<D, T> tree{{pos.typed_data<T>(),
                         D,
                         read_count(num, shape[0]),
                         splits.typed_data(),
                         particle_splits.typed_data(),
                         lower.typed_data<T>(),
                         upper.typed_data<T>(),
                         layout.planes(),
                         {}}};
  for (size_t i = 0; i < layout.starts.size(); ++i) tree.starts[i] = layout.starts[i];
  return tree;
}

// Widens [low, high] to what the top plane covers in a dimension. By one warp.
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

// The widest extent of the top planes of two hierarchies in open dimensions. By one warp.
template <int D, typename T>
__device__ double open_extent(const double* box, const DeviceTree<D, T>& a, const DeviceTree<D, T>& b) {
  double extent = 0;
  for (int d = 0; d < D; ++d) {
    double low = std::numeric_limits<double>::infinity(), high = -low;
    top_extent(a, d, &low, &high);
    top_extent(b, d, &low, &high);
    if (!(box[d] > 0) && high > low && high - low > extent) extent = high - low;
  }
  return extent;
}

}  // namespace jztree
