// The walk of two hierarchies, or of one with itself, that counts pairs of their particles; on one thread.
//
// The wider of two nodes is opened until all pairs are in one bin or in no bin, or both nodes are leaves. The bins of a
// node limit those of its children. For sums of separations, nodes with all pairs in one bin are opened too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "pair_bins.h"
#include "pair_leaf_counts.h"
#include "pair_problem.h"
#include "pair_sight.h"
#include "pair_table.h"

namespace jztree {

template <PairMode Mode, int D, typename T>
class PairWalk {
 public:
  using V = Lanes<T>;
  using Side = PairSide<D, T>;

  PairWalk(const PairProblem<D, T>& problem, PairTable& table)
      : problem_(problem),
        one_(problem.one),
        other_(problem.other),
        rule_(problem.rule),
        limits_(problem.first.bounds(), problem.second.bounds(), problem.first.exact[0] == 0, problem.rule.to_middle(),
                errors_of(problem.rule)),
        table_(table),
        leaves_(problem, table) {
    for (int d = 0; d < D; ++d) gap_period_[d] = problem.scale.period[d] * below_one<T>;
  }

  // Count all pairs of a node's particles with those of the whole other set.
  void with_all(int plane, int64_t i) {
    int top = other_.tree.layout().planes() - 1;
    Box box(one_, plane, i);
    for_near(other_, top, 0, other_.tree.layout().sizes[static_cast<size_t>(top)], box, limits_.all(),
             [&](int64_t node, const Bins& bins) { pair({plane, i}, {top, node}, bins); });
  }

  // Count all pairs within a node, and of its particles with later ones of the same set.
  void with_later(int plane, int64_t i) {
    within({plane, i});
    int top = one_.tree.layout().planes() - 1;
    behind({plane, i}, Box(one_, plane, i), top, 0, one_.tree.layout().sizes[static_cast<size_t>(top)]);
  }

 private:
  // If positions are rounded, so are angles.
  static PairErrors<T> errors_of(const PairRule<D, T>& rule) {
    PairErrors<T> errors;
    if (Mode == PairMode::distance_cosine) errors.along = static_cast<T>(8 * rule.distances.rounding);
    return errors;
  }

  struct Node {
    int plane;
    int64_t i;
  };
  struct Box {
    T low[D], high[D], width2;
    Box(const Side& side, int plane, int64_t i) : width2(0) {
      size_t flat = side.flat(plane, i);
      for (int d = 0; d < D; ++d) {
        low[d] = side.tree.low[d][flat];
        high[d] = side.tree.high[d][flat];
        width2 += (high[d] - low[d]) * (high[d] - low[d]);
      }
    }
  };

  // Call visit(i, bins) for the nodes [begin, end) of a plane that may have pairs in bins with particles in the box.
  template <typename Visit>
  void for_near(const Side& side, int plane, int64_t begin, int64_t end, const Box& box, const Bins& possible,
                const Visit& visit) const {
    for (int64_t first = begin; first < end; first += lanes) {
      PairBounds<T> bounds;
      node_bounds(side, static_cast<int64_t>(side.flat(plane, first)), box, bounds);
      for (int64_t i = 0; i < std::min(lanes, end - first); ++i) {
        if (side.count(plane, first + i) == 0) continue;
        Bins bins = possible;
        limits_.narrow(bounds, i, bins);
        if (bounds.reach[i] == 0 && coincide(side, static_cast<int64_t>(side.flat(plane, first + i)), box)) continue;
        if (limits_.counts(bins)) visit(first + i, bins);
      }
    }
  }

  __attribute__((flatten)) void node_bounds(const Side& side, int64_t flat, const Box& box,
                                            PairBounds<T>& bounds) const {
    V sums[2]{}, along[2]{};
    SightedBoxes<D, V> boxes{};
    const bool to_middle = Mode != PairMode::distance && rule_.to_middle();
    for (int d = 0; d < D; ++d) {
      V low, high, box_low(box.low[d]), box_high(box.high[d]);
      load(side.tree.low[d] + flat, low);
      load(side.tree.high[d] + flat, high);
      V reach = larger<V>(high - box_low, box_high - low);
      reach = smaller<V>(reach, V(problem_.scale.period[d] / 2));
      V gap = interval_gap<V>(box_low, box_high, low, high, V(gap_period_[d]));
      add_dimension<Mode, D, V>(d, to_middle, gap, reach, sums, along);
      if (!to_middle) continue;
      const V middle = (low + high) * T(0.5), box_middle = (box_low + box_high) * T(0.5);
      const V half = ((high - low) + (box_high - box_low)) * T(0.5);
      boxes.apart[d] = box_middle - middle;
      boxes.sum[d] = box_middle + middle;
      boxes.radius2 = boxes.radius2 + half * half;
    }
    if constexpr (Mode != PairMode::distance)
      if (to_middle) bound_sighted<Mode, D, T>(boxes, limits_.farthest_along(), sums, along);
    store_bounds<Mode, T>(sums, along, bounds);
  }

  // Whether all particles of a node and a box are at one place, so that no bin holds their pairs.
  bool coincide(const Side& side, int64_t flat, const Box& box) const {
    bool coincident = rule_.distances.exact_zero;
    for (int d = 0; d < D; ++d)
      coincident &= side.tree.low[d][flat] == side.tree.high[d][flat] && box.low[d] == box.high[d] &&
                    box.low[d] == side.tree.low[d][flat];
    return coincident;
  }

  // a: of one set, b: of the other; they are not the same node of one set.
  void pair(Node a, Node b, const Bins& bins) {
    if (bins.is_single() && !problem_.separations && same_regions(a, b)) return add_all(a, b, bins);
    if (a.plane == 0 && b.plane == 0) return pair_leaves(a.i, b.i, bins);
    Box of_a(one_, a.plane, a.i), of_b(other_, b.plane, b.i);
    if (b.plane == 0 || (a.plane > 0 && of_a.width2 > of_b.width2)) {
      for_near(one_, a.plane - 1, one_.tree.first_child(a.plane, a.i), one_.tree.first_child(a.plane, a.i + 1), of_b,
               bins, [&](int64_t child, const Bins& its) { pair({a.plane - 1, child}, b, its); });
    } else {
      for_near(other_, b.plane - 1, other_.tree.first_child(b.plane, b.i), other_.tree.first_child(b.plane, b.i + 1),
               of_a, bins, [&](int64_t child, const Bins& its) { pair(a, {b.plane - 1, child}, its); });
    }
  }

  // Count the pairs within a node of one set.
  void within(Node node) {
    Box box(one_, node.plane, node.i);
    if (one_.count(node.plane, node.i) < 2 || coincide(one_, static_cast<int64_t>(one_.flat(node.plane, node.i)), box))
      return;
    if (node.plane == 0) return pair_leaves(node.i, node.i, limits_.all(), true);
    int64_t end = one_.tree.first_child(node.plane, node.i + 1);
    for (int64_t child = one_.tree.first_child(node.plane, node.i); child < end; ++child) {
      within({node.plane - 1, child});
      if (one_.count(node.plane - 1, child) == 0) continue;
      for_near(one_, node.plane - 1, child + 1, end, Box(one_, node.plane - 1, child), limits_.all(),
               [&](int64_t later, const Bins& bins) { pair({node.plane - 1, child}, {node.plane - 1, later}, bins); });
    }
  }

  // Count the pairs of the node's particles with later ones in nodes [begin, end) of a plane.
  void behind(Node node, const Box& box, int plane, int64_t begin, int64_t end) {
    int64_t last = one_.tree.first_row(node.plane, node.i + 1);
    while (begin < end && one_.tree.first_row(plane, begin) < last) {
      if (plane > node.plane && one_.tree.first_row(plane, begin + 1) > last)
        behind(node, box, plane - 1, one_.tree.first_child(plane, begin), one_.tree.first_child(plane, begin + 1));
      ++begin;
    }
    for_near(one_, plane, begin, end, box, limits_.all(),
             [&](int64_t later, const Bins& bins) { pair(node, {plane, later}, bins); });
  }

  bool same_regions(Node a, Node b) const {
    if (!table_.has_regions()) return true;
    return one_.node_region(a.plane, a.i) >= 0 && other_.node_region(b.plane, b.i) >= 0;
  }
  void enter_regions(Node a, Node b) {
    if (table_.has_regions()) table_.enter(one_.node_region(a.plane, a.i), other_.node_region(b.plane, b.i));
  }

  void add_all(Node a, Node b, const Bins& bins) {
    enter_regions(a, b);
    double weight = table_.weighted() ? one_.node_weight(a.plane, a.i) * other_.node_weight(b.plane, b.i) : 0;
    table_.add(table_.place(bins.lo, bins.lo_b), one_.count(a.plane, a.i) * other_.count(b.plane, b.i), weight);
  }

  // itself: both are the same leaf, and each of its pairs counts once.
  void pair_leaves(int64_t a, int64_t b, const Bins& possible, bool itself = false) {
    const bool mixed_regions = !same_regions({0, a}, {0, b});
    if (!mixed_regions) enter_regions({0, a}, {0, b});
    leaves_.count(a, b, possible, itself, mixed_regions);
  }

  const PairProblem<D, T>& problem_;
  const Side &one_, &other_;
  const PairRule<D, T>& rule_;
  const PairBins<Mode, T> limits_;
  T gap_period_[D];
  PairTable& table_;
  LeafPairs<Mode, D, T> leaves_;
};

}  // namespace jztree
