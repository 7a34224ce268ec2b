// The sets whose particles form pairs, staged, with the weights of whole nodes.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/cpu/staged_tree.h"
#include "pair_counts.h"

namespace jztree {

// Dimensions are reordered: the line of sight is the last one.
template <int D, typename T>
inline Scale<D, T> turned(Scale<D, T> scale, int axis) {
  std::swap(scale.period[axis], scale.period[D - 1]);
  std::swap(scale.period_rest[axis], scale.period_rest[D - 1]);
  std::swap(scale.raw_period[axis], scale.raw_period[D - 1]);
  return scale;
}

template <int D, typename T>
class PairSide {
 public:
  static constexpr int32_t mixed = -1, nobody = -2;

  const T* pos;  // (n, D), input positions
  StagedTree<D, T> tree;

  PairSide(const Parallel& parallel, const PairSet<D, T>& set, const Scale<D, T>& scale, int axis)
      : pos(set.tree.pos), tree(parallel, set.tree, scale), weight_(set.weight), region_(set.region) {
    std::swap(tree.x[axis], tree.x[D - 1]);
    std::swap(tree.low[axis], tree.low[D - 1]);
    std::swap(tree.high[axis], tree.high[D - 1]);
    if (set.weight.rows() == 0) weight_ = nullptr;
    if (set.region.rows() == 0) region_ = nullptr;
    if (weight_ || region_) sum_nodes(parallel);
  }

  size_t flat(int plane, int64_t i) const {
    return static_cast<size_t>(tree.layout().starts[static_cast<size_t>(plane)] + i);
  }
  int64_t count(int plane, int64_t i) const { return tree.first_row(plane, i + 1) - tree.first_row(plane, i); }

  double weight(int64_t row) const { return weight_ ? static_cast<double>(weight_[row]) : 1.; }
  int32_t region(int64_t row) const { return region_ ? region_[row] : 0; }
  double node_weight(int plane, int64_t i) const {
    return weight_ ? node_weight_[flat(plane, i)] : static_cast<double>(count(plane, i));
  }
  // The common region of a node's particles, or `mixed`.
  int32_t node_region(int plane, int64_t i) const { return region_ ? node_region_[flat(plane, i)] : 0; }

 private:
  void sum_nodes(const Parallel& parallel) {
    const TreeLayout& layout = tree.layout();
    node_weight_.resize(static_cast<size_t>(layout.nodes()));
    node_region_.assign(static_cast<size_t>(layout.nodes()), nobody);
    for (int plane = 0; plane < layout.planes(); ++plane)
      parallel.blocks(layout.sizes[static_cast<size_t>(plane)], 1 << 10, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) sum_node(plane, i);
      });
  }

  // In the order of rows, so that sums do not depend on the thread.
  void sum_node(int plane, int64_t i) {
    double sum = 0;
    int32_t region = nobody;
    for (int64_t inside = tree.first_child(plane, i); inside < tree.first_child(plane, i + 1); ++inside) {
      sum += plane == 0 ? weight(inside) : node_weight_[flat(plane - 1, inside)];
      int32_t its = plane == 0 ? this->region(inside) : node_region_[flat(plane - 1, inside)];
      if (its != nobody) region = region == nobody || region == its ? its : mixed;
    }
    node_weight_[flat(plane, i)] = sum;
    node_region_[flat(plane, i)] = region;
  }

  const T* weight_;
  const int32_t* region_;
  std::vector<double> node_weight_;   // [node]
  std::vector<int32_t> node_region_;  // [node]
};

}  // namespace jztree
