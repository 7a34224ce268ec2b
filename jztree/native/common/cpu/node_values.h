// Joins the values of rows to a value for each node of a hierarchy.
#pragma once

#include <cstdint>

#include "common/tree_arguments.h"
#include "parallel.h"

namespace jztree {

// Set joined[node] = join(parts, begin, end) in all planes, leaves first. parts: for leaves, an array of the values of
// rows, otherwise of the nodes of the plane below.
template <int D, typename T, typename Rows, typename Joined, typename Join>
void join_nodes(const Parallel& parallel, const Tree<D, T>& tree, const Rows& of_rows, Joined* joined,
                const Join& join) {
  const TreeLayout& layout = tree.layout;
  for (int plane = 0; plane < layout.planes(); ++plane) {
    const int32_t* split = tree.splits + layout.split_start(plane);
    Joined* here = joined + layout.starts[static_cast<size_t>(plane)];
    const Joined* below = plane > 0 ? joined + layout.starts[static_cast<size_t>(plane) - 1] : nullptr;
    parallel.blocks(layout.sizes[static_cast<size_t>(plane)], 512, [&](int64_t begin, int64_t end) {
      for (int64_t node = begin; node < end; ++node)
        here[node] = below ? join(below, split[node], split[node + 1]) : join(of_rows, split[node], split[node + 1]);
    });
  }
}

// Adds in float64, in the order of rows.
struct AddedInOrder {
  template <typename Parts>
  double operator()(const Parts& parts, int64_t begin, int64_t end) const {
    double sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += static_cast<double>(parts[i]);
    return sum;
  }
};

}  // namespace jztree
