// The weights of all nodes of a hierarchy, in float64.
#pragma once

#include <cstdint>

#include "common/cuda/tree.cuh"

namespace jztree {

// The weights of the nodes of a plane, in the order of rows. parts: what a node is made of, weights of rows or of
// nodes.
template <typename Part>
__global__ void add_weights(const int32_t* splits, const Part* parts, int64_t nodes, double* sums) {
  int64_t node = thread_index();
  if (node >= nodes) return;
  double sum = 0;
  for (int64_t i = splits[node]; i < splits[node + 1]; ++i) sum += static_cast<double>(parts[i]);
  sums[node] = sum;
}

template <int D, typename T>
const double* node_weights(Queue& queue, const Tree<D, T>& tree, const T* weight) {
  const TreeLayout& layout = tree.layout;
  auto* sums = queue.scratch<double>(layout.nodes());
  for (int plane = 0; plane < layout.planes(); ++plane) {
    size_t here = static_cast<size_t>(plane);
    const int32_t* splits = tree.splits + layout.split_start(plane);
    double* of_plane = sums + layout.starts[here];
    if (plane == 0) {
      queue.launch_over(layout.sizes[here], add_weights<T>, splits, weight, layout.sizes[here], of_plane);
    } else {
      queue.launch_over(layout.sizes[here], add_weights<double>, splits, sums + layout.starts[here - 1],
                        layout.sizes[here], of_plane);
    }
  }
  return sums;
}

}  // namespace jztree
