// Counts the pairs of two leaves.
//
// For each particle of the first leaf, the box of the second leaf limits the edges that can separate its pairs. If
// these are few, vector comparisons count the pairs within each edge (pair_squares.h). With two quantities, weights or
// regions, vectors find the bin of each pair (pair_places.h). Otherwise, each pair's bin comes from a table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "pair_bins.h"
#include "pair_leaves.h"
#include "pair_places.h"
#include "pair_problem.h"
#include "pair_squares.h"
#include "pair_table.h"

namespace jztree {

template <PairMode Mode, int D, typename T>
class LeafPairs {
 public:
  using V = Lanes<T>;
  using Side = PairSide<D, T>;
  using Limits = PairBins<Mode, D, T>;

  LeafPairs(const PairProblem<D, T>& problem, const Limits& limits, PairTable& table)
      : one_(problem.one),
        other_(problem.other),
        rule_(problem.rule),
        first_(problem.first),
        second_(problem.second),
        limits_(limits),
        table_(table),
        leaves_(problem.scale, problem.most),
        squares_(static_cast<size_t>(problem.first.count)),
        places_(problem),
        row_(static_cast<size_t>(problem.most + lanes)),
        chosen_(row_.size()) {}

  // Periods for lower bounds of distances across the boundary.
  const T* gap_period() const { return leaves_.gap_period(); }

  // Count the pairs of leaf a of one set and leaf b of the other. itself: both are the same leaf, and each of its pairs
  // counts once. apart: the regions differ from pair to pair.
  void count(int64_t a, int64_t b, const Bins& possible, bool itself, bool apart) {
    leaves_.set(one_.tree, a, other_.tree, b);
    row_a_ = one_.tree.leaf_row(a), row_b_ = other_.tree.leaf_row(b);
    itself_ = itself, apart_ = apart;
    const bool alike = !apart_ && !table_.weighted();
    if constexpr (!sighted)
      if (possible.hi - possible.lo <= few_edges && alike)
        return leaves_.pairwise() ? compare_leaves<true>(possible) : compare_leaves<false>(possible);
    find_rows(possible, table_.weighted() ? other_.node_weight(0, b) : 0);
    if (!limits_.to_middle() && places_.worth(possible))
      return leaves_.pairwise() ? place_leaves<true>(possible) : place_leaves<false>(possible);
    for (int64_t k = 0; k < rows_; ++k) {
      int64_t i = row_[static_cast<size_t>(k)];
      leaves_.pairwise() ? look_up_row<true>(i) : look_up_row<false>(i);
    }
  }

 private:
  static constexpr bool sighted = Limits::sighted;
  // Above this number, edges are not compared one by one.
  static constexpr int64_t few_edges = 32;

  // Find the rows of the first leaf whose pairs may be in several bins. The pairs of the other rows are counted here.
  void find_rows(const Bins& possible, double weight_b) {
    // Narrowing takes one step per edge, so rows that span many edges are usually processed without it.
    const bool few = possible.few();
    rows_ = 0;
    for (int64_t begin = 0; begin < leaves_.count_a(); begin += lanes) {
      PairBounds<T> bounds;
      leaves_.bounds(begin, bounds);
      uint32_t near = limits_.near(bounds);
      if (leaves_.count_a() - begin < lanes) near &= (uint32_t{1} << (leaves_.count_a() - begin)) - 1;
      if (few) near = without_whole(begin, near, bounds, possible, weight_b);
      rows_ += pack_chosen(near, static_cast<int32_t>(begin), row_.data() + rows_);
    }
  }

  uint32_t without_whole(int64_t begin, uint32_t near, const PairBounds<T>& bounds, const Bins& possible,
                         double weight_b) {
    for (uint32_t left = near; left != 0; left &= left - 1) {
      int i = __builtin_ctz(left);
      Bins bins = possible;
      limits_.narrow(bounds, i, bins);
      const bool counts = limits_.counts(bins);
      if (counts && (!bins.one() || apart_ || itself_)) continue;
      near &= ~(uint32_t{1} << i);
      if (counts) table_.add(bins.lo, bins.lo_b, leaves_.count_b(), one_.weight(row_a_ + begin + i) * weight_b);
    }
    return near;
  }

  // Find the bins of the pairs, one block of the second leaf after another.
  template <bool Pairwise>
  __attribute__((flatten)) void place_leaves(const Bins& bins) {
    const bool itself = itself_;
    const V outermost(first_.outermost()), farthest(limits_.farthest_along());
    const int32_t* const rows = row_.data();
    const int64_t count = rows_;
    uint32_t* const chosen = chosen_.data();
    places_.begin(bins);
    for (int64_t begin = 0; begin < leaves_.count_b(); begin += lanes) {
      const auto block = leaves_.template block<Pairwise>(begin);
      auto buffer = places_.buffer();
      for (int64_t k = 0; k < count; ++k) {
        V first, along;
        block.template quantities<Pairwise>(rows[k], first, along);
        uint32_t near = lanes_at_most(first, outermost);
        if (sighted) near &= lanes_at_most(along, farthest);
        if (itself) near &= behind(rows[k], begin);
        chosen[k] = near;
        buffer.put(first, along, near);
      }
      const int32_t* const places =
          places_.find(buffer.end, [&](int64_t at, T first, T along) { look_up_put(at, begin, first, along); });
      add_placed(begin, places, buffer.end);
    }
  }

  // Add the pairs in the buffer.
  void add_placed(int64_t begin, const int32_t* places, int64_t number) {
    if (apart_)
      return add_weighed(begin, places, [&](int32_t place, int64_t row_a, int64_t row_b, double weight) {
        table_.add_pair(place, one_.region(row_a), other_.region(row_b), weight);
      });
    const PairTable::Here here = table_.here();
    if (table_.weighted())
      return add_weighed(begin, places, [&](int32_t place, int64_t, int64_t, double weight) {
        ++here.counts[place];
        here.sums[place] += weight;
      });
    for (int64_t i = 0; i < number; ++i) ++here.counts[places[i]];
  }

  // Call add(place, row_a, row_b, weight) for each pair in the buffer, in order.
  template <typename Add>
  void add_weighed(int64_t begin, const int32_t* places, const Add& add) {
    const int64_t row_b = row_b_ + begin;
    for (int64_t k = 0; k < rows_; ++k) {
      const int64_t row_a = row_a_ + row_[static_cast<size_t>(k)];
      const double weight = one_.weight(row_a);
      for (uint32_t left = chosen_[static_cast<size_t>(k)]; left != 0; left &= left - 1) {
        const int64_t b = row_b + __builtin_ctz(left);
        add(*places++, row_a, b, weight * other_.weight(b));
      }
    }
  }

  // Look up the pair at position `at` of the buffer.
  __attribute__((noinline)) void look_up_put(int64_t at, int64_t begin, T first, T along) {
    size_t k = 0;
    for (; at >= __builtin_popcount(chosen_[k]); ++k) at -= __builtin_popcount(chosen_[k]);
    uint32_t left = chosen_[k];
    for (; at > 0; --at) left &= left - 1;
    look_up(row_a_ + row_[k], row_b_ + begin + __builtin_ctz(left), first, along);
  }

  // Count the pairs within each edge.
  template <bool Pairwise>
  void compare_leaves(const Bins& bins) {
    rows_ = 0;
    for (int64_t begin = 0; begin < leaves_.count_a(); begin += lanes) {
      int64_t here = std::min(lanes, leaves_.count_a() - begin);
      uint32_t rows = (uint32_t{1} << here) - 1;
      if (!itself_) rows = split(begin, rows, bins);
      rows_ += pack_chosen(rows, static_cast<int32_t>(begin), row_.data() + rows_);
    }
    if (rows_ == 0) return;
    const int64_t end = leaves_.count_a();
    // The number of compared pairs. If one edge contains every pair, this is the total number of pairs.
    int64_t pairs = itself_ ? end * (end - 1) / 2 : rows_ * leaves_.count_b();
    T* squares = squares_.begin(bins.lo, bins.hi);
    // Pairs with separate images are rare, so they get no special code for few edges.
    switch (itself_ || Pairwise ? 0 : bins.hi - bins.lo) {
      case 1: compare_few<1>(bins); break;
      case 2: compare_few<2>(bins); break;
      case 3: compare_few<3>(bins); break;
      case 4: compare_few<4>(bins); break;
      default: itself_ ? compare_many<Pairwise, true>(bins, squares) : compare_many<Pairwise, false>(bins, squares);
    }
    add_compared<Pairwise>(bins, pairs);
  }

  template <int Edges>
  __attribute__((flatten)) void compare_few(const Bins& bins) {
    const int32_t *const rows = row_.data(), *const end = rows + rows_;
    FewEdges<T, Edges> edges(first_.surely.data() + bins.lo, first_.possibly.data() + bins.lo);
    for (int64_t begin = 0; begin < leaves_.count_b(); begin += lanes) {
      const auto block = leaves_.template block<false>(begin);
      for (const int32_t* row = rows; row < end; ++row) {
        V distance2, along;
        block.template quantities<false>(*row, distance2, along);
        edges.add(distance2);
      }
    }
    squares_.add(edges);
  }

  template <bool Pairwise, bool Itself>
  __attribute__((flatten)) void compare_many(const Bins& bins, T* to) {
    // Pairs outside the last edge do not count. If no pair can be outside it, only padding is dropped: padding is
    // farther than the largest finite number.
    const V outermost(bins.hi == first_.count ? first_.outermost() : std::numeric_limits<T>::max());
    const int32_t *const rows = row_.data(), *const end = rows + rows_;
    for (int64_t begin = 0; begin < leaves_.count_b(); begin += lanes) {
      const auto block = leaves_.template block<Pairwise>(begin);
      for (const int32_t* row = rows; row < end; ++row) {
        V distance2, along;
        block.template quantities<Pairwise>(*row, distance2, along);
        uint32_t near = lanes_at_most(distance2, outermost);
        if (Itself) near &= behind(*row, begin);
        to = squares_.put(distance2, near, to);
        if (squares_.full(to)) to = squares_.sift(first_.surely.data(), first_.possibly.data(), to);
      }
    }
    squares_.sift(first_.surely.data(), first_.possibly.data(), to);
  }

  // Among the given rows of the first leaf, starting at `begin`, return those with pairs on both sides of an edge. The
  // pairs of the other rows are counted here.
  uint32_t split(int64_t begin, uint32_t rows, const Bins& bins) {
    PairBounds<T> bounds;
    leaves_.bounds(begin, bounds);
    V gap, reach;
    load(bounds.gap, gap);
    load(bounds.reach, reach);
    int64_t *table = table_.column(0), each = leaves_.count_b();
    uint32_t both_sides = 0, beyond = rows;  // rows above the previous edge
    for (int64_t edge = bins.lo; edge < bins.hi; ++edge) {
      uint32_t within = lanes_at_most(reach, V(first_.surely[static_cast<size_t>(edge)])) & rows;
      uint32_t none_within = ~lanes_at_most(gap, V(first_.possibly[static_cast<size_t>(edge)])) & rows;
      table[edge] += __builtin_popcount(within & beyond) * each;
      both_sides |= rows & ~(within | none_within);
      beyond = none_within;
    }
    table[bins.hi] += __builtin_popcount(beyond) * each;
    return both_sides;
  }

  // The particles of the second leaf, starting at `begin`, that form pairs with the i-th particle of the first.
  uint32_t behind(int64_t i, int64_t begin) const {
    if (!itself_ || i < begin) return ~uint32_t{0};
    return i - begin < lanes ? ~uint32_t{0} << (i - begin) << 1 : 0;
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

  // The number of undecided pairs that are within an edge.
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
    const V outermost(first_.outermost()), farthest(limits_.farthest_along());
    for (int64_t begin = itself_ ? i / lanes * lanes : 0; begin < leaves_.count_b(); begin += lanes) {
      V first, along;
      row.template quantities<Pairwise>(begin, first, along);
      if (limits_.to_middle()) {
        look_up_near(i, begin, first, along);
        continue;
      }
      uint32_t near = lanes_at_most(first, outermost) & behind(i, begin);
      if (sighted) near &= lanes_at_most(along, farthest);
      if (near != 0) look_up_lanes(row_a_ + i, row_b_ + begin, near, first, along);
    }
  }

  // The next two functions are not inlined, because the compiler would repeat their code for each kind of row.
  __attribute__((noinline, flatten)) void look_up_lanes(int64_t row_a, int64_t row_b, uint32_t near, const V& first,
                                                        const V& along) {
    T firsts[lanes], alongs[lanes];
    store(first, firsts);
    if (sighted) store(along, alongs);
    for (; near != 0; near &= near - 1) {
      const int lane = __builtin_ctz(near);
      look_up(row_a, row_b + lane, firsts[lane], sighted ? alongs[lane] : T{0});
    }
  }

  // Decide in float64 about the pairs that are near enough.
  __attribute__((noinline, flatten)) void look_up_near(int64_t i, int64_t begin, const V& first, const V& along) {
    const V distance2 = Mode == PairMode::across_along ? (first + along * along) * V(below_one<T>) : first;
    uint32_t near = lanes_at_most(distance2, V(limits_.farthest2())) & behind(i, begin);
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
    if (!(distance2 > Limits::vanishing)) {
      low = 0, high = std::numeric_limits<T>::infinity();
      return;
    }
    T cosine = along / std::sqrt(distance2), slip = rule_.slip(distance2);
    low = cosine - slip, high = cosine + slip;
  }

  const Side &one_, &other_;
  const PairRule<D, T>& rule_;
  const EdgeTable<T, OctaveCells>& first_;
  const EdgeTable<T, EqualCells>& second_;
  const Limits& limits_;
  PairTable& table_;
  PairLeaves<Mode, D, T> leaves_;
  PairSquares<T> squares_;
  PairPlaces<Mode, D, T> places_;
  // The current leaves: their first rows, and the rows of the first leaf that are not counted as a whole.
  int64_t row_a_ = 0, row_b_ = 0, rows_ = 0;
  std::vector<int32_t> row_;
  std::vector<uint32_t> chosen_;  // the buffered pairs of each row
  bool itself_ = false;           // both are the same leaf, and each of its pairs counts once
  bool apart_ = false;            // the regions differ from pair to pair
};

}  // namespace jztree
