// The search for the lightest edges from some rows of a leaf to rows of other sets: one walk from the top for all of
// them, nearest nodes first. It skips nodes whose rows all belong to the set of all searching rows, and nodes farther
// away than the lightest edge that any searching row still needs. Bounds are those of the row's set, so all threads
// share them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "common/cpu/leaf_distances.h"
#include "common/cpu/node_distances.h"
#include "common/cpu/row_box.h"
#include "edge_sets.h"

namespace jztree {

template <int D, typename T>
class EdgeWalk {
 public:
  // most: the largest number of rows of a leaf.
  EdgeWalk(EdgeSets<D, T>& sets, int64_t leaf_capacity)
      : sets_(sets),
        tree_(sets.tree),
        distances_(sets.tree.scale(), leaf_capacity),
        radius2_(static_cast<size_t>(leaf_capacity + lanes)),
        found_(static_cast<size_t>(leaf_capacity)),
        gaps_(static_cast<size_t>(most_children + lanes)) {}

  // Search for the rows first + i of a leaf, for each i in `places`, and store their edges and floors.
  void search(int64_t leaf, const std::vector<int32_t>& places) {
    first_ = tree_.leaf_row(leaf);
    count_ = tree_.leaf_row(leaf + 1) - first_;
    begin(places);
    const int top = tree_.layout().planes() - 1;
    stack_.clear();
    open(top, 0, tree_.layout().sizes[static_cast<size_t>(top)]);
    while (!stack_.empty()) {
      const Node node = stack_.back();
      stack_.pop_back();
      if (node.gap2 > reach2_) continue;
      if (node.plane == 0) {
        look_at(node.index, places);
      } else {
        open(node.plane - 1, tree_.first_child(node.plane, node.index), tree_.first_child(node.plane, node.index + 1));
      }
    }
    for (int32_t place : places) store(place);
  }

 private:
  static constexpr int64_t most_children = 64;  // tested at a time
  static constexpr T infinity = std::numeric_limits<T>::infinity();

  struct Node {
    T gap2;
    int plane;
    int64_t index;
  };

  struct Found {
    double weight;
    uint64_t pair;
    int32_t to;
    double bound;  // of weights for which radius2 was computed
  };

  void begin(const std::vector<int32_t>& places) {
    no_box<D>(low_, high_);
    std::fill_n(radius2_.begin(), count_ + lanes, T{-1});
    common_set_ = sets_.set[first_ + places.front()];
    for (int32_t place : places) {
      const int64_t row = first_ + place;
      if (sets_.set[row] != common_set_) common_set_ = many_sets;
      for (int d = 0; d < D; ++d) {
        low_[d] = std::min(low_[d], tree_.x[d][row]);
        high_[d] = std::max(high_[d], tree_.x[d][row]);
      }
      Found& found = found_[static_cast<size_t>(place)];
      found = {no_weight, no_pair, -1, no_weight};
      radius2_[static_cast<size_t>(place)] = infinity;
      if (sets_.to[row] >= 0) {
        const int32_t to = sets_.to[row];
        found = {sets_.weight(row, to), sets_.rows_of(row, to), to, no_weight};
      }
    }
    limit(places);
  }

  // Update the radii from the least weights of all threads.
  void limit(const std::vector<int32_t>& places) {
    reach2_ = -1;
    for (int32_t place : places) {
      Found& found = found_[static_cast<size_t>(place)];
      const double bound = std::min(found.weight, farther * sets_.least_of(sets_.set[first_ + place]));
      T& radius2 = radius2_[static_cast<size_t>(place)];
      if (bound < found.bound) {
        found.bound = bound;
        radius2 = sets_.rule.possibly2(bound);
      }
      reach2_ = std::max(reach2_, radius2);
    }
  }

  // Push the near ones among some nodes of a plane, the nearest last.
  void open(int plane, int64_t begin, int64_t end) {
    const int64_t start = tree_.layout().starts[static_cast<size_t>(plane)];
    for (int64_t first = begin; first < end; first += most_children) {
      const int64_t count = std::min(most_children, end - first);
      node_distances<D, T>(tree_, low_, high_, distances_.gap_period(), start + first, count, gaps_.data());
      const size_t bottom = stack_.size();
      for (int64_t i = 0; i < count; ++i) {
        const T gap2 = gaps_[static_cast<size_t>(i)];
        const int32_t set = sets_.nodes[static_cast<size_t>(start + first + i)];
        if (gap2 > reach2_ || (set == common_set_ && set != many_sets)) continue;
        stack_.push_back({gap2, plane, first + i});
        for (size_t place = stack_.size() - 1; place > bottom && stack_[place - 1].gap2 < gap2; --place)
          std::swap(stack_[place - 1], stack_[place]);
      }
    }
  }

  void look_at(int64_t leaf, const std::vector<int32_t>& places) {
    if (tree_.leaf_row(leaf) == tree_.leaf_row(leaf + 1)) return;
    distances_.set_leaf(tree_, leaf, low_, high_);
    bool any = false;
    for (int64_t block = 0; block < count_; block += lanes) {
      Lanes<T> radius2;
      load(radius2_.data() + block, radius2);
      uint32_t candidates = distances_.within(tree_, first_ + block, count_ - block, radius2);
      for (; candidates != 0; candidates &= candidates - 1)
        any |= look_from(static_cast<int32_t>(block) + __builtin_ctz(candidates));
    }
    if (any) limit(places);
  }

  // Take the edges from a row to the current leaf of `distances_`. Returns whether any was taken.
  bool look_from(int32_t place) {
    const int64_t row = first_ + place;
    const int32_t row_set = sets_.set[row];
    Found& found = found_[static_cast<size_t>(place)];
    T& radius2 = radius2_[static_cast<size_t>(place)];
    bool any = false;
    distances_.each_near(tree_, row, radius2, [&](int64_t neighbour, T distance2) {
      if (distance2 > radius2 || distance2 == infinity || sets_.set[neighbour] == row_set) return true;
      const double weight = sets_.weight(row, neighbour);
      if (weight > found.weight) return true;
      const uint64_t pair = sets_.rows_of(row, neighbour);
      if (weight == found.weight && pair >= found.pair) return true;
      found = {weight, pair, static_cast<int32_t>(neighbour), found.bound};
      if (weight < found.bound) {
        found.bound = weight;
        radius2 = sets_.rule.possibly2(weight);
      }
      any = true;
      return true;
    });
    if (any) sets_.offer(row_set, found.weight);
    return any;
  }

  // Nodes were skipped only if they were farther away than a bound that is at least the final one. So an edge up to
  // the final bound is the lightest one of its row, and without such an edge, all edges are above the bound.
  void store(int32_t place) {
    const int64_t row = first_ + place;
    const Found& found = found_[static_cast<size_t>(place)];
    const double set_limit = farther * sets_.least_of(sets_.set[row]);
    sets_.to[row] = found.to;
    sets_.is_lightest[row] = found.to >= 0 && found.weight <= set_limit;
    sets_.floor[row] = sets_.is_lightest[row] ? found.weight : above(set_limit);
  }

  EdgeSets<D, T>& sets_;
  const StagedTree<D, T>& tree_;
  LeafDistances<D, T> distances_;
  std::vector<T> radius2_;    // [place in the leaf]; negative: does not search
  std::vector<Found> found_;  // [place in the leaf]
  std::vector<T> gaps_;
  std::vector<Node> stack_;
  int64_t first_ = 0, count_ = 0;  // rows of the leaf
  int32_t common_set_ = many_sets;
  T low_[D], high_[D];  // box of the searching rows
  T reach2_ = 0;        // the largest radius
};

}  // namespace jztree
