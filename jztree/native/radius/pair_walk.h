// The walk of two hierarchies, or of one with itself, that counts pairs of their particles; by one thread.
//
// Of two nodes the wider one is opened, until all their pairs are in one bin, or in none, or both are leaves. What
// boxes say of the bins that pairs may be in only gets narrower on the way down. Of two leaves, the box of the second
// says again for each particle of the first which edges its pairs may be at; if these are few, pairs within each are
// counted by comparing vectors, else each pair's bin is looked up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "pair_leaves.h"
#include "pair_problem.h"
#include "pair_squares.h"
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
        first_(problem.first),
        second_(problem.second),
        table_(table),
        to_middle_(sighted && problem.rule.to_middle()),
        farthest2_(first_.outermost()),
        leaves_(problem.scale, problem.most),
        squares_(static_cast<size_t>(problem.first.count)) {
    if (to_middle_) farthest2_ = farthest_distance2<Mode, T>(first_.outermost(), second_.outermost());
  }

  // All pairs of a node's particles with those of the whole other set.
  void with_all(int plane, int64_t i) {
    int top = other_.tree.layout().planes() - 1;
    Box box(one_, plane, i);
    for_near(other_, top, 0, other_.tree.layout().sizes[static_cast<size_t>(top)], box, all_bins(),
             [&](int64_t node, const Bins& bins) { pair({plane, i}, {top, node}, bins); });
  }

  // All pairs within a node, and of its particles with those behind it in the same set.
  void with_later(int plane, int64_t i) {
    within({plane, i});
    int top = one_.tree.layout().planes() - 1;
    behind({plane, i}, Box(one_, plane, i), top, 0, one_.tree.layout().sizes[static_cast<size_t>(top)]);
  }

 private:
  static constexpr bool sighted = Mode != PairMode::distance;
  // More edges than these are not compared one by one.
  static constexpr int64_t few_edges = 32;

  struct Node {
    int plane;
    int64_t i;
  };
  // Pairs are within no edge before `lo`, and within all from `hi` on; the same for the second quantity.
  struct Bins {
    int64_t lo, hi, lo_b, hi_b;
    bool one() const { return lo == hi && lo_b == hi_b; }
    // As many steps as a few pairs take to be looked up.
    bool few() const { return hi - lo + hi_b - lo_b <= 8; }
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

  Bins all_bins() const { return {0, first_.count, 0, second_.count}; }
  bool counts(const Bins& bins) const {
    if (bins.lo == first_.count || bins.hi == 0) return false;
    return !sighted || (bins.lo_b < second_.count && bins.hi_b > 0);
  }

  // The bins of pairs, of those that they may be in, by the i-th of the bounds.
  void narrow(const PairBounds<T>& bounds, int64_t i, Bins& bins) const {
    if (to_middle_) return narrow_to_middle(bounds, i, bins);
    T gap = bounds.gap[i], reach = bounds.reach[i];
    first_.narrow(gap, reach, bins.lo, bins.hi);
    if (!sighted) return;
    T low = bounds.gap_along[i], high = bounds.reach_along[i];
    if (Mode == PairMode::distance_cosine) {
      // Rounded positions change small angles much; those of few particles are looked at one by one.
      if (rule_.cosine_slip > 0 || !(gap > vanishing)) return;
      low = std::sqrt(low * low / reach) * below_one<T>;
      high = std::sqrt(high * high / gap) * above_one<T>;
    }
    second_.narrow(low, high, bins.lo_b, bins.hi_b);
  }

  // The distance bounds both quantities, whatever the line of sight is.
  void narrow_to_middle(const PairBounds<T>& bounds, int64_t i, Bins& bins) const {
    T gap = distance_gap(bounds, i), reach = bounds.reach[i];
    if (Mode == PairMode::distance_cosine) return first_.narrow(gap, reach, bins.lo, bins.hi);
    reach = (reach + bounds.reach_along[i] * bounds.reach_along[i]) * above_one<T>;
    first_.narrow(T{0}, reach, bins.lo, bins.hi);
    second_.narrow(T{0}, std::sqrt(reach) * above_one<T>, bins.lo_b, bins.hi_b);
    if (gap > farthest2_) bins.lo = first_.count;
  }
  // A lower bound of the squared distance in all dimensions.
  T distance_gap(const PairBounds<T>& bounds, int64_t i) const {
    T gap = bounds.gap[i];
    return Mode == PairMode::across_along ? (gap + bounds.gap_along[i] * bounds.gap_along[i]) * below_one<T> : gap;
  }
  // Whether pairs are in no bin for sure.
  bool too_far(const PairBounds<T>& bounds, int64_t i) const {
    return to_middle_ ? distance_gap(bounds, i) > farthest2_ : bounds.gap[i] > first_.outermost();
  }

  // Calls visit(i, bins) for the nodes [begin, end) of a plane that may have pairs in bins with what is in the box.
  template <typename Visit>
  void for_near(const Side& side, int plane, int64_t begin, int64_t end, const Box& box, const Bins& possible,
                const Visit& visit) const {
    for (int64_t first = begin; first < end; first += lanes) {
      PairBounds<T> bounds;
      node_bounds(side, static_cast<int64_t>(side.flat(plane, first)), box, bounds);
      for (int64_t i = 0; i < std::min(lanes, end - first); ++i) {
        if (side.count(plane, first + i) == 0) continue;
        Bins bins = possible;
        narrow(bounds, i, bins);
        if (bounds.reach[i] == 0 && coincide(side, static_cast<int64_t>(side.flat(plane, first + i)), box)) continue;
        if (counts(bins)) visit(first + i, bins);
      }
    }
  }

  __attribute__((flatten)) void node_bounds(const Side& side, int64_t flat, const Box& box,
                                            PairBounds<T>& bounds) const {
    V sums[2]{}, along[2]{};
    for (int d = 0; d < D; ++d) {
      V low, high, box_low(box.low[d]), box_high(box.high[d]);
      load(side.tree.low[d] + flat, low);
      load(side.tree.high[d] + flat, high);
      V reach = larger<V>(high - box_low, box_high - low);
      reach = smaller<V>(reach, V(problem_.scale.period[d] / 2));
      V gap = interval_gap<V>(box_low, box_high, low, high, V(leaves_.gap_period()[d]));
      add_dimension<Mode, D, V>(d, gap, reach, sums, along);
    }
    store_bounds<Mode, T>(sums, along, bounds);
  }

  // Whether all that is in a node and a box is at one place, or on one line of sight if that is what counts. Such pairs
  // are within every edge, so in no bin.
  bool coincide(const Side& side, int64_t flat, const Box& box) const {
    bool same = rule_.distances.exact_zero;
    for (int d = 0; d < D - (Mode == PairMode::across_along && !to_middle_); ++d)
      same &= side.tree.low[d][flat] == side.tree.high[d][flat] && box.low[d] == box.high[d] &&
              box.low[d] == side.tree.low[d][flat];
    return same;
  }

  // a: of the one set, b: of the other; they are not the same node of one set.
  void pair(Node a, Node b, const Bins& bins) {
    if (bins.one() && same_regions(a, b)) return add_all(a, b, bins);
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

  // Of one set.
  void within(Node node) {
    Box box(one_, node.plane, node.i);
    if (one_.count(node.plane, node.i) < 2 || coincide(one_, static_cast<int64_t>(one_.flat(node.plane, node.i)), box))
      return;
    if (node.plane == 0) return pair_leaves(node.i, node.i, all_bins(), true);
    int64_t end = one_.tree.first_child(node.plane, node.i + 1);
    for (int64_t child = one_.tree.first_child(node.plane, node.i); child < end; ++child) {
      within({node.plane - 1, child});
      if (one_.count(node.plane - 1, child) == 0) continue;
      for_near(one_, node.plane - 1, child + 1, end, Box(one_, node.plane - 1, child), all_bins(),
               [&](int64_t later, const Bins& bins) { pair({node.plane - 1, child}, {node.plane - 1, later}, bins); });
    }
  }

  // Pairs of the node's particles with those behind it in nodes [begin, end) of a plane.
  void behind(Node node, const Box& box, int plane, int64_t begin, int64_t end) {
    int64_t last = one_.tree.first_row(node.plane, node.i + 1);
    while (begin < end && one_.tree.first_row(plane, begin) < last) {
      if (plane > node.plane && one_.tree.first_row(plane, begin + 1) > last)
        behind(node, box, plane - 1, one_.tree.first_child(plane, begin), one_.tree.first_child(plane, begin + 1));
      ++begin;
    }
    for_near(one_, plane, begin, end, box, all_bins(),
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
    table_.add(bins.lo, bins.lo_b, one_.count(a.plane, a.i) * other_.count(b.plane, b.i), weight);
  }

  // itself: the leaves are one, of which each pair counts once.
  void pair_leaves(int64_t a, int64_t b, const Bins& possible, bool itself = false) {
    leaves_.set(one_.tree, a, other_.tree, b);
    row_a_ = one_.tree.leaf_row(a), row_b_ = other_.tree.leaf_row(b);
    apart_ = !same_regions({0, a}, {0, b});
    itself_ = itself;
    if (!apart_) enter_regions({0, a}, {0, b});
    if (Mode == PairMode::distance && possible.hi - possible.lo <= few_edges && !apart_ && !table_.weighted()) {
      leaves_.pairwise() ? compare_leaves<true>(possible) : compare_leaves<false>(possible);
    } else {
      look_up_leaves(possible, table_.weighted() ? other_.node_weight(0, b) : 0);
    }
  }

  void look_up_leaves(const Bins& possible, double weight_b) {
    for (int64_t begin = 0; begin < leaves_.count_a(); begin += lanes) {
      PairBounds<T> bounds;
      leaves_.bounds(begin, bounds);
      for (int64_t i = begin; i < std::min(begin + lanes, leaves_.count_a()); ++i) {
        Bins bins = possible;
        // It takes a step for each edge, so most that span many are just looked at.
        if (bins.few()) narrow(bounds, i - begin, bins);
        if (!counts(bins) || too_far(bounds, i - begin)) continue;
        if (bins.one() && !apart_ && !itself_) {
          table_.add(bins.lo, bins.lo_b, leaves_.count_b(), one_.weight(row_a_ + i) * weight_b);
        } else {
          leaves_.pairwise() ? look_up_row<true>(i) : look_up_row<false>(i);
        }
      }
    }
  }

  // Counts pairs within each edge.
  template <bool Pairwise>
  __attribute__((flatten)) void compare_leaves(const Bins& bins) {
    // Nothing is farther than the outermost number but what is no particle.
    const V outermost(bins.hi == first_.count ? first_.outermost() : std::numeric_limits<T>::max());
    T* end = squares_.begin(bins.lo, bins.hi);
    int64_t pairs = 0;  // at least those that are put, and all of them if there is an edge that all are within
    for (int64_t begin = 0; begin < leaves_.count_a(); begin += lanes) {
      int64_t here = std::min(lanes, leaves_.count_a() - begin);
      uint32_t rows = (uint32_t{1} << here) - 1;
      if (!itself_) rows = without_whole(begin, rows, bins);
      for (; rows != 0; rows &= rows - 1) {
        int64_t i = begin + __builtin_ctz(rows);
        pairs += leaves_.count_b() - (itself_ ? i + 1 : 0);
        end = compare_row<Pairwise>(i, outermost, end);
      }
    }
    squares_.sift(first_.surely.data(), first_.possibly.data(), end);
    add_compared<Pairwise>(bins, pairs);
  }

  // Of rows of the first leaf, from the begin-th on, those that have pairs on both sides of an edge. The others are
  // counted.
  uint32_t without_whole(int64_t begin, uint32_t rows, const Bins& bins) {
    PairBounds<T> bounds;
    leaves_.bounds(begin, bounds);
    V gap, reach;
    load(bounds.gap, gap);
    load(bounds.reach, reach);
    int64_t *table = table_.column(0), each = leaves_.count_b();
    uint32_t split = 0, beyond = rows;  // beyond the edge before
    for (int64_t edge = bins.lo; edge < bins.hi; ++edge) {
      uint32_t within = lanes_at_most(reach, V(first_.surely[static_cast<size_t>(edge)])) & rows;
      uint32_t none_within = ~lanes_at_most(gap, V(first_.possibly[static_cast<size_t>(edge)])) & rows;
      table[edge] += __builtin_popcount(within & beyond) * each;
      split |= rows & ~(within | none_within);
      beyond = none_within;
    }
    table[bins.hi] += __builtin_popcount(beyond) * each;
    return split;
  }

  // Puts a particle's squared distances behind `end`, and returns where they end.
  template <bool Pairwise>
  T* compare_row(int64_t i, const V& outermost, T* end) {
    const auto row = leaves_.template row<Pairwise>(i);
    const int64_t count = leaves_.count_b();
    for (int64_t begin = itself_ ? i / lanes * lanes : 0; begin < count; begin += lanes) {
      V distance2, along;
      row.template quantities<Pairwise>(begin, distance2, along);
      end = squares_.put(distance2, lanes_at_most(distance2, outermost) & behind(i, begin), end);
      if (squares_.full(end)) end = squares_.sift(first_.surely.data(), first_.possibly.data(), end);
    }
    return end;
  }

  // Of particles of the second leaf from the begin-th on, those that are paired with the i-th of the first.
  uint32_t behind(int64_t i, int64_t begin) const {
    return itself_ && i >= begin ? ~uint32_t{0} << (i - begin) << 1 : ~uint32_t{0};
  }

  template <bool Pairwise>
  void add_compared(const Bins& bins, int64_t pairs) {
    int64_t outside = pairs, *table = table_.column(0);
    for (int64_t edge = bins.hi - 1; edge >= bins.lo && outside > 0; --edge) {
      int64_t inside = squares_.surely(edge);
      if (squares_.possibly(edge) != inside) inside += decide<Pairwise>(edge);
      table[edge + 1] += outside - inside;
      outside = inside;
    }
    table[bins.lo] += outside;
  }

  // How many pairs of which that is not sure are within an edge.
  template <bool Pairwise>
  __attribute__((noinline)) int64_t decide(int64_t edge) const {
    const size_t at = static_cast<size_t>(edge);
    const V surely(first_.surely[at]), possibly(first_.possibly[at]);
    int64_t within = 0;
    for (int64_t i = 0; i < leaves_.count_a(); ++i) {
      const auto row = leaves_.template row<Pairwise>(i);
      for (int64_t begin = itself_ ? i / lanes * lanes : 0; begin < leaves_.count_b(); begin += lanes) {
        V distance2, along;
        row.template quantities<Pairwise>(begin, distance2, along);
        uint32_t unsure = lanes_at_most(distance2, possibly) & ~lanes_at_most(distance2, surely) & behind(i, begin);
        for (; unsure != 0; unsure &= unsure - 1)
          within += rule_.within_first(one_.pos + (row_a_ + i) * D,
                                       other_.pos + (row_b_ + begin + __builtin_ctz(unsure)) * D, first_.exact[at]);
      }
    }
    return within;
  }

  template <bool Pairwise>
  __attribute__((flatten)) void look_up_row(int64_t i) {
    const auto row = leaves_.template row<Pairwise>(i);
    const V outermost(first_.outermost()), farthest(sighted ? farthest_along() : T{0});
    for (int64_t begin = itself_ ? i / lanes * lanes : 0; begin < leaves_.count_b(); begin += lanes) {
      V first, along;
      row.template quantities<Pairwise>(begin, first, along);
      if (to_middle_) {
        look_up_near(i, begin, first, along);
        continue;
      }
      uint32_t near = lanes_at_most(first, outermost) & behind(i, begin);
      if (sighted) near &= lanes_at_most(along, farthest);
      if (near == 0) continue;
      T firsts[lanes], alongs[lanes];
      store(first, firsts);
      if (sighted) store(along, alongs);
      for (; near != 0; near &= near - 1) {
        int lane = __builtin_ctz(near);
        look_up(row_a_ + i, row_b_ + begin + lane, firsts[lane], sighted ? alongs[lane] : T{0});
      }
    }
  }

  // What of these is near enough is looked at in float64.
  void look_up_near(int64_t i, int64_t begin, const V& first, const V& along) {
    const V distance2 = Mode == PairMode::across_along ? (first + along * along) * V(below_one<T>) : first;
    uint32_t near = lanes_at_most(distance2, V(farthest2_)) & behind(i, begin);
    for (; near != 0; near &= near - 1) look_up_to_middle(row_a_ + i, row_b_ + begin + __builtin_ctz(near));
  }

  void look_up_to_middle(int64_t row_a, int64_t row_b) {
    const Sighted pair = rule_.sighted(one_.pos + row_a * D, other_.pos + row_b * D);
    T first, second;
    rule_.quantities(pair, &first, &second);
    if (first > first_.outermost()) return;
    int64_t edge = first_.first_within(first, first, [&](double exact) { return rule_.within_first(pair, exact); });
    if (edge == 0 || edge == first_.count || second > second_.outermost()) return;
    int64_t edge_b =
        second_.first_within(second, second, [&](double exact) { return rule_.within_second(pair, exact); });
    if (edge_b > 0 && edge_b < second_.count) add(row_a, row_b, edge, edge_b);
  }

  // Beyond this along the line of sight, pairs are in no bin.
  T farthest_along() const {
    return Mode == PairMode::across_along ? second_.outermost() : std::numeric_limits<T>::max();
  }

  void look_up(int64_t row_a, int64_t row_b, T first, T along) {
    const T *a = one_.pos + row_a * D, *b = other_.pos + row_b * D;
    int64_t edge = first_.first_within(first, first, [&](double exact) { return rule_.within_first(a, b, exact); });
    if (edge == 0 || edge == first_.count) return;
    int64_t edge_b = 0;
    if (sighted) {
      T low = along, high = along;
      if (Mode == PairMode::distance_cosine) cosine_range(first, along, low, high);
      edge_b = second_.first_within(low, high, [&](double exact) { return rule_.within_second(a, b, exact); });
      if (edge_b == 0 || edge_b == second_.count) return;
    }
    add(row_a, row_b, edge, edge_b);
  }

  void add(int64_t row_a, int64_t row_b, int64_t edge, int64_t edge_b) {
    double weight = table_.weighted() ? one_.weight(row_a) * other_.weight(row_b) : 0;
    if (apart_) {
      table_.add_pair(edge, edge_b, one_.region(row_a), other_.region(row_b), weight);
    } else {
      table_.add(edge, edge_b, 1, weight);
    }
  }

  void cosine_range(T distance2, T along, T& low, T& high) const {
    if (!(distance2 > vanishing)) {
      low = 0, high = std::numeric_limits<T>::infinity();
      return;
    }
    T cosine = along / std::sqrt(distance2), slip = rule_.slip(distance2);
    low = cosine - slip, high = cosine + slip;
  }

  // Squares below this have lost digits.
  static constexpr T vanishing = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon() * 64;

  const PairProblem<D, T>& problem_;
  const Side &one_, &other_;
  const PairRule<D, T>& rule_;
  const EdgeTable<T, OctaveCells>& first_;
  const EdgeTable<T, EqualCells>& second_;
  PairTable& table_;
  const bool to_middle_;  // each pair has a line of sight of its own
  T farthest2_;           // pairs beyond are in no bin; of all dimensions if each has a line of sight of its own
  PairLeaves<Mode, D, T> leaves_;
  PairSquares<T> squares_;
  // The leaves at work: their first rows, and whether their pairs have regions of their own.
  int64_t row_a_ = 0, row_b_ = 0;
  bool apart_ = false;
  bool itself_ = false;  // the leaves are one, of which each pair counts once
};

}  // namespace jztree
