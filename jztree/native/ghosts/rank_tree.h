// A small tree over ranks. A rank uses it to search the published boxes of all ranks. The cost then depends on the
// number of neighbouring ranks, not on the total number. Ranks own consecutive ranges of the z-order, so consecutive
// ranks are near each other. Only the CPU kernels use it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "boxes.h"
#include "common/cpu/parallel.h"
#include "common/space.h"

namespace jztree {

template <int D, typename T>
class RankTree {
 public:
  // counts: the number of sources in each box; empty boxes are left out.
  RankTree(const Parallel& parallel, const PublishedBoxes<D, T>& boxes, const int32_t* counts)
      : boxes_(boxes), counts_(counts), clusters_((boxes.per_rank + cluster - 1) / cluster) {
    near_.resize(static_cast<size_t>(boxes.ranks * clusters_));
    planes_.emplace_back(static_cast<size_t>(boxes.ranks));
    parallel.blocks(boxes.ranks, 32, [&](int64_t begin, int64_t end) {
      for (int64_t rank = begin; rank < end; ++rank) {
        Node& node = planes_[0][static_cast<size_t>(rank)];
        for (int64_t c = 0; c < clusters_; ++c) {
          Node& here = near_[static_cast<size_t>(rank * clusters_ + c)];
          for (int64_t s = first_box(rank, c); s < first_box(rank, c + 1); ++s)
            if (counts[s] > 0) here.include(boxes.low(s), boxes.high(s), counts[s]);
          if (here.count > 0) node.include(here.low, here.high, here.count);
        }
      }
    });
    while (planes_.back().size() > 1) {
      const std::vector<Node>& below = planes_.back();
      std::vector<Node> above((below.size() + fan_out - 1) / fan_out);
      for (size_t i = 0; i < below.size(); ++i)
        if (below[i].count > 0) above[i / fan_out].include(below[i].low, below[i].high, below[i].count);
      planes_.push_back(std::move(above));
    }
  }

  // Whether a box of another rank than `excluded_rank` is within a distance of [low, high].
  bool any_within(const Space<D>& space, const T* low, const T* high, double distance, int64_t excluded_rank) const {
    return any_rank(top(), 0, excluded_rank, space, low, high, distance,
                    [&](int64_t rank) { return has_box_within(rank, space, low, high, distance); });
  }

  // Call visit(rank) for all ranks except `own`, in order, that have a box within a distance of [low, high].
  template <typename Visit>
  void each_within(const Space<D>& space, const T* low, const T* high, double distance, int64_t excluded_rank,
                   const Visit& visit) const {
    any_rank(top(), 0, excluded_rank, space, low, high, distance, [&](int64_t rank) {
      if (has_box_within(rank, space, low, high, distance)) visit(rank);
      return false;
    });
  }

  // The smaller of `known` and a distance within which every point of [low, high] surely has `enough` sources.
  // reach(low, high): an upper limit of the distance to points of a box. For a box inside another, it must not be
  // larger than for the outer box.
  template <typename Reach>
  double reach_of_enough(const Space<D>& space, const T* low, const T* high, int64_t enough, double upper_limit,
                         const Reach& reach) const {
    if (planes_.back()[0].count < enough) return upper_limit;
    // For any position of a source, some corner of [low, high] is at least half of its diagonal away.
    if (upper_limit <= reach(low, high) / 2) return upper_limit;
    upper_limit = reach_of_a_node(enough, upper_limit, reach);
    std::vector<std::pair<double, int64_t>> near;
    any_rank(top(), 0, -1, space, low, high, upper_limit, [&](int64_t rank) {
      return any_box(rank, space, low, high, upper_limit, [&](int64_t s) {
        double box_reach = reach(boxes_.low(s), boxes_.high(s));
        if (box_reach < upper_limit) near.emplace_back(box_reach, counts_[s]);
        return false;
      });
    });
    std::sort(near.begin(), near.end());
    int64_t sources = 0;
    for (const auto& [farthest, count] : near)
      if ((sources += count) >= enough) return farthest;
    return upper_limit;
  }

 private:
  static constexpr size_t fan_out = 8;
  static constexpr int64_t cluster = 16;  // consecutive boxes of a rank, which are near each other

  struct Node {
    T low[D], high[D];
    int64_t count = 0;

    void include(const T* lower, const T* upper, int64_t sources) {
      for (int d = 0; d < D; ++d) {
        low[d] = count == 0 ? lower[d] : std::min(low[d], lower[d]);
        high[d] = count == 0 ? upper[d] : std::max(high[d], upper[d]);
      }
      count += sources;
    }
  };

  size_t top() const { return planes_.size() - 1; }
  // The children of a node above the ranks are the nodes from begin to end.
  std::pair<size_t, size_t> children(size_t plane, size_t node) const {
    return {node * fan_out, std::min(planes_[plane - 1].size(), (node + 1) * fan_out)};
  }

  // Call visit(rank) for the ranks that may have boxes within a distance of [low, high], except for one rank, until it
  // returns true. Returns whether it returned true.
  template <typename Visit>
  bool any_rank(size_t plane, size_t node, int64_t excluded_rank, const Space<D>& space, const T* low, const T* high,
                double distance, const Visit& visit) const {
    const Node& here = planes_[plane][node];
    if (here.count == 0 || !within(space.gap2(low, high, here.low, here.high), distance)) return false;
    if (plane == 0) return static_cast<int64_t>(node) != excluded_rank && visit(static_cast<int64_t>(node));
    auto [begin, end] = children(plane, node);
    for (size_t i = begin; i < end; ++i)
      if (any_rank(plane - 1, i, excluded_rank, space, low, high, distance, visit)) return true;
    return false;
  }

  bool has_box_within(int64_t rank, const Space<D>& space, const T* low, const T* high, double distance) const {
    return any_box(rank, space, low, high, distance, [](int64_t) { return true; });
  }

  // Call wanted(box) for the boxes of a rank within a distance of [low, high], until it returns true. Returns whether
  // it returned true.
  template <typename Wanted>
  bool any_box(int64_t rank, const Space<D>& space, const T* low, const T* high, double distance,
               const Wanted& wanted) const {
    for (int64_t c = 0; c < clusters_; ++c) {
      const Node& here = near_[static_cast<size_t>(rank * clusters_ + c)];
      if (here.count == 0 || !within(space.gap2(low, high, here.low, here.high), distance)) continue;
      for (int64_t s = first_box(rank, c); s < first_box(rank, c + 1); ++s)
        if (counts_[s] > 0 && within(space.gap2(low, high, boxes_.low(s), boxes_.high(s)), distance) && wanted(s))
          return true;
    }
    return false;
  }

  // Walk down from the top to the smallest node with at least `enough` sources. Returns the reach of this node, or
  // `known` if that is less.
  template <typename Reach>
  double reach_of_a_node(int64_t enough, double upper_limit, const Reach& reach) const {
    size_t node = 0;
    for (size_t plane = top();; --plane) {
      const Node& here = planes_[plane][node];
      upper_limit = std::min(upper_limit, reach(here.low, here.high));
      if (plane == 0) return upper_limit;
      auto [begin, end] = children(plane, node);
      double smallest_reach = std::numeric_limits<double>::infinity();
      for (size_t i = begin; i < end; ++i) {
        const Node& child = planes_[plane - 1][i];
        if (child.count < enough) continue;
        double child_reach = reach(child.low, child.high);
        if (child_reach < smallest_reach) smallest_reach = child_reach, node = i;
      }
      if (smallest_reach == std::numeric_limits<double>::infinity()) return upper_limit;
    }
  }

  int64_t first_box(int64_t rank, int64_t c) const {
    return rank * boxes_.per_rank + std::min(boxes_.per_rank, c * cluster);
  }

  const PublishedBoxes<D, T>& boxes_;
  const int32_t* counts_;
  const int64_t clusters_;                 // in the boxes of a rank
  std::vector<Node> near_;                 // around each cluster
  std::vector<std::vector<Node>> planes_;  // from the plane of the ranks up to a single node
};

}  // namespace jztree
