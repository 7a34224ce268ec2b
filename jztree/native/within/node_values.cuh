// Joins the values of rows to a value for each node of a hierarchy.
#pragma once

#include <cstdint>
#include <limits>

#include "common/cuda/tree.cuh"
#include "common/geometry.h"

namespace jztree {

// The values of the nodes of a plane. parts: the values of rows or of child nodes; any type with operator[].
template <typename Join, typename Parts>
__global__ void join_parts(const int32_t* splits, Parts parts, int64_t nodes, typename Join::Joined* joined) {
  int64_t node = thread_index();
  if (node < nodes) joined[node] = Join()(parts, splits[node], splits[node + 1]);
}

// Join()(parts, begin, end) joins the parts from `begin` on and before `end`, in order.
template <typename Join, int D, typename T, typename Rows>
const typename Join::Joined* join_nodes(Queue& queue, const Tree<D, T>& tree, const Rows& of_rows) {
  using Joined = typename Join::Joined;
  const TreeLayout& layout = tree.layout;
  auto* joined = queue.scratch<Joined>(layout.nodes());
  for (int plane = 0; plane < layout.planes(); ++plane) {
    size_t level = static_cast<size_t>(plane);
    const int32_t* splits = tree.splits + layout.split_start(plane);
    Joined* of_plane = joined + layout.starts[level];
    if (plane == 0) {
      queue.launch_over(layout.sizes[level], join_parts<Join, Rows>, splits, of_rows, layout.sizes[level], of_plane);
    } else {
      const Joined* below = joined + layout.starts[level - 1];
      queue.launch_over(layout.sizes[level], join_parts<Join, const Joined*>, splits, below, layout.sizes[level],
                        of_plane);
    }
  }
  return joined;
}

template <typename T>
struct LargestPart {
  using Joined = T;

  template <typename Parts>
  __device__ T operator()(const Parts& parts, int64_t begin, int64_t end) const {
    T maximum = 0;
    for (int64_t i = begin; i < end; ++i) maximum = larger<T>(maximum, parts[i]);
    return maximum;
  }
};

template <typename T>
struct SmallestPart {
  using Joined = T;

  template <typename Parts>
  __device__ T operator()(const Parts& parts, int64_t begin, int64_t end) const {
    T minimum = std::numeric_limits<T>::infinity();
    for (int64_t i = begin; i < end; ++i) minimum = smaller<T>(minimum, parts[i]);
    return minimum;
  }
};

// Sums in float64.
struct AddedWeights {
  using Joined = double;

  template <typename Parts>
  __device__ double operator()(const Parts& parts, int64_t begin, int64_t end) const {
    double sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += static_cast<double>(parts[i]);
    return sum;
  }
};

}  // namespace jztree
