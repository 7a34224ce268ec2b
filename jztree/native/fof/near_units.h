// Finds the units near a few others that are near each other, by one walk.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/cpu/node_distances.h"
#include "common/cpu/staged_tree.h"
#include "link_lanes.h"

namespace jztree {

struct Node {
  int plane;
  int64_t index;
};

// Units are leaves, and marked nodes of higher planes; the nodes below these are not units.
template <int D, typename T, typename Rule>
class NearUnits {
 public:
  using Half = typename Rule::Half;

  // marked: one entry per node, plane after plane. gap_period: see LeafDistances.
  NearUnits(const StagedTree<D, T>& tree, const Rule& rule, const std::vector<uint8_t>& marked, const T* gap_period)
      : tree_(tree), rule_(rule), marked_(marked), gap_period_(gap_period) {}

  // Find the units that begin at row `first` or after it, and may be linked to particles in a box. half: of the box.
  void find(const T* low, const T* high, Half half, int64_t first) {
    const int top = tree_.layout().planes() - 1;
    units_.clear();
    halves_.clear();
    for (std::vector<T>& corner : corners_) corner.clear();
    look_through(top, 0, tree_.layout().sizes[static_cast<size_t>(top)], low, high, half, first);
    while (!stack_.empty()) {
      const Node node = stack_.back();
      stack_.pop_back();
      look_through(node.plane - 1, tree_.first_child(node.plane, node.index),
                   tree_.first_child(node.plane, node.index + 1), low, high, half, first);
    }
    for (std::vector<T>& corner : corners_) corner.resize(units_.size() + lanes);
    halves_.resize(units_.size() + lanes);
  }

  // Call visit(node) for the found units that begin at `first` or after it, and may be linked to a box inside that box.
  template <typename Visit>
  void each(const T* low, const T* high, Half half, int64_t first, const Visit& visit) {
    NodeBoxes<D, T> boxes;
    for (int d = 0; d < D; ++d) {
      boxes.low[d] = corners_[2 * d].data();
      boxes.high[d] = corners_[2 * d + 1].data();
    }
    const int64_t all = static_cast<int64_t>(units_.size());
    for (int64_t begin = 0; begin < all; begin += lanes) {
      auto distance2 = [&] { return possibly_linked2(rule_, half, halves_.data() + begin); };
      uint32_t reached = near_nodes(boxes, low, high, gap_period_, begin, std::min(lanes, all - begin), distance2);
      for (; reached != 0; reached &= reached - 1) {
        const Unit& unit = units_[static_cast<size_t>(begin + __builtin_ctz(reached))];
        if (unit.first_row >= first) visit(unit.node);
      }
    }
  }

 private:
  struct Unit {
    Node node;
    int64_t first_row;
  };

  // Take the units among some nodes of a plane, and push other nodes that may contain units.
  void look_through(int plane, int64_t begin, int64_t end, const T* low, const T* high, Half half, int64_t first) {
    const int64_t start = tree_.layout().starts[static_cast<size_t>(plane)];
    for (int64_t first_node = begin; first_node < end; first_node += lanes) {
      const int64_t count = std::min(lanes, end - first_node);
      auto distance2 = [&] { return possibly_linked2(rule_, half, rule_.nodes_from(start + first_node)); };
      uint32_t reached = near_nodes(tree_, low, high, gap_period_, start + first_node, count, distance2);
      for (; reached != 0; reached &= reached - 1) {
        const int64_t i = first_node + __builtin_ctz(reached);
        const int64_t first_row = tree_.first_row(plane, i), end_row = tree_.first_row(plane, i + 1);
        if (end_row <= first || first_row == end_row) continue;
        if (plane > 0 && !marked_[static_cast<size_t>(start + i)]) {
          stack_.push_back({plane, i});
        } else if (first_row >= first) {
          take({plane, i}, static_cast<size_t>(start + i), first_row);
        }
      }
    }
  }

  void take(Node node, size_t flat, int64_t first_row) {
    units_.push_back({node, first_row});
    halves_.push_back(rule_.most_of(static_cast<int64_t>(flat)));
    for (int d = 0; d < D; ++d) {
      corners_[2 * d].push_back(tree_.low[d][flat]);
      corners_[2 * d + 1].push_back(tree_.high[d][flat]);
    }
  }

  const StagedTree<D, T>& tree_;
  const Rule& rule_;
  const std::vector<uint8_t>& marked_;
  const T* gap_period_;
  std::vector<Node> stack_;
  std::vector<Unit> units_;
  std::vector<T> corners_[2 * D];  // of their boxes, low and high of each dimension
  std::vector<Half> halves_;
};

}  // namespace jztree
