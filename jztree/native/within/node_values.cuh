// Joins the values of rows to a value for each node of a hierarchy.
#pragma once

#include <cstdint>
#include <limits>

#include "common/cuda/planes.cuh"
#include "common/geometry.h"
#include "common/tree_arguments.h"

namespace jztree {

// Rows: any type with operator[].
template <typename Join, typename Rows>
struct JoinParts {
  using Joined = typename Join::Joined;

  PlaneNodes nodes;
  Rows of_rows;
  Joined* joined;

  __device__ void operator()(int plane, int64_t node) const {
    const int64_t first = nodes.first_child(plane, node), end = nodes.first_child(plane, node + 1);
    const Joined* below = joined;
    joined[nodes.place(plane, node)] = plane == 0 ? Join()(of_rows, first, end) : Join()(below, first, end);
  }
};

// Join()(parts, begin, end) joins the parts from `begin` on and before `end`, in order.
template <typename Join, int D, typename T, typename Rows>
const typename Join::Joined* join_nodes(Queue& queue, const Tree<D, T>& tree, const Rows& of_rows) {
  auto* joined = queue.scratch<typename Join::Joined>(tree.layout.nodes());
  launch_planes(queue, tree.layout, 0, 1, JoinParts<Join, Rows>{{tree.layout, tree.splits}, of_rows, joined});
  return joined;
}

template <typename T, bool Largest>
struct ExtremePart {
  using Joined = T;

  template <typename Parts>
  __device__ T operator()(const Parts& parts, int64_t begin, int64_t end) const {
    T extreme = Largest ? T{0} : std::numeric_limits<T>::infinity();
    for (int64_t i = begin; i < end; ++i)
      extreme = Largest ? larger<T>(extreme, parts[i]) : smaller<T>(extreme, parts[i]);
    return extreme;
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
