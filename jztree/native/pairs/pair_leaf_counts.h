// Counts the pairs of two leaves.
//
// For each particle of the first leaf, the box of the second leaf limits the edges that can separate its pairs. If
// these are few, vector comparisons count the pairs within each edge (pair_squares.h). With two quantities, weights or
// regions, vectors find the bin of each pair (pair_places.h). Otherwise, each pair's bin comes from a table.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "pair_bins.h"
#include "pair_leaf_edges.h"
#include "pair_leaves.h"
#include "pair_places.h"
#include "pair_problem.h"
#include "pair_squares.h"
#include "pair_table.h"

namespace jztree {

template <PairMode Mode, int D, typename T>
class LeafPairs {
 public:
  using V = Lanes<float>;
  using Side = PairSide<D, T>;

  LeafPairs(const PairProblem<D, T>& problem, PairTable& table)
      : one_(problem.one),
        other_(problem.other),
        rule_(problem.rule),
        first_(problem.first),
        second_(problem.second),
        scale_(problem.scale),
        separations_(problem.separations),
        table_(table),
        leaves_(problem.scale, problem.rule.distances.rounding, problem.rule.to_middle(), problem.most),
        edges_(problem),
        squares_(static_cast<size_t>(problem.first.count)),
        places_(problem.first.count, problem.second.count, problem.most, table.copies()),
        row_(static_cast<size_t>(problem.most + lanes)),
        chosen_(row_.size()),
        weight_b_(table.weighted() ? row_.size() : 0),
        weights_(table.weighted() ? row_.size() * lanes : 0) {}

  // Count the pairs of leaf a of one set and leaf b of the other. itself: both are the same leaf, and each of its pairs
  // counts once. apart: the regions differ from pair to pair.
  void count(int64_t a, int64_t b, const Bins& possible, bool itself, bool apart) {
    leaves_.set(one_.tree, a, other_.tree, b);
    edges_.set(leaves_, possible);
    row_a_ = one_.tree.leaf_row(a), row_b_ = other_.tree.leaf_row(b);
    itself_ = itself, apart_ = apart;
    const double weight_b = table_.weighted() ? other_.node_weight(0, b) : 0;
    switch (leaves_.quantities()) {
      case Quantities::plain: return count_as<Quantities::plain>(possible, weight_b);
      case Quantities::pairwise: return count_as<Quantities::pairwise>(possible, weight_b);
      case Quantities::sighted:
        if constexpr (sighted) count_as<Quantities::sighted>(possible, weight_b);
    }
  }

 private:
  static constexpr bool sighted = Mode != PairMode::distance;

  template <Quantities How>
  void count_as(const Bins& possible, double weight_b) {
    if constexpr (!sighted)
      if (possible.hi - possible.lo <= few_edges && !apart_ && !table_.weighted()) return compare_leaves<How>(possible);
    const PairBins<Mode, float> limits = edges_.limits();
    find_rows(limits, possible, weight_b);
    if (places_.worth(possible, edges_.even()) && std::isfinite(leaves_.angle()))
      return place_leaves<How>(limits, possible);
    for (int64_t k = 0; k < rows_; ++k) look_up_row<How>(limits, row_[static_cast<size_t>(k)]);
  }

  // Find the rows of the first leaf whose pairs may be in several bins. The pairs of the other rows are counted here.
  void find_rows(const PairBins<Mode, float>& limits, const Bins& possible, double weight_b) {
    // Narrowing takes one step per edge, so rows that span many edges are usually processed without it.
    const bool few = possible.few() && !separations_;
    rows_ = 0;
    for (int64_t begin = 0; begin < leaves_.count_a(); begin += lanes) {
      PairBounds<float> bounds;
      leaves_.bounds(begin, limits.farthest_along(), bounds);
      uint32_t near = limits.near(bounds);
      if (leaves_.count_a() - begin < lanes) near &= (uint32_t{1} << (leaves_.count_a() - begin)) - 1;
      if (few) near = without_whole(limits, begin, near, bounds, possible, weight_b);
      rows_ += pack_chosen(near, static_cast<int32_t>(begin), row_.data() + rows_);
    }
  }

  uint32_t without_whole(const PairBins<Mode, float>& limits, int64_t begin, uint32_t near,
                         const PairBounds<float>& bounds, const Bins& possible, double weight_b) {
    for (uint32_t left = near; left != 0; left &= left - 1) {
      int i = __builtin_ctz(left);
      Bins bins = possible;
      limits.narrow(bounds, i, bins);
      const bool counts = limits.counts(bins);
      if (counts && (!bins.one() || apart_ || itself_)) continue;
      near &= ~(uint32_t{1} << i);
      if (counts) table_.add(bins.lo, bins.lo_b, leaves_.count_b(), one_.weight(row_a_ + begin + i) * weight_b);
    }
    return near;
  }

  // Find the bins of the pairs, one block of the second leaf after another.
  template <Quantities How>
  __attribute__((flatten)) void place_leaves(const PairBins<Mode, float>& limits, const Bins& bins) {
    const bool itself = itself_;
    const PairErrors<float>& errors = edges_.errors();
    const V outermost(limits.first().outermost() + errors.per_distance2 * limits.farthest2() + errors.across2);
    const V farthest(limits.farthest_along() + errors.along);
    const int32_t* const rows = row_.data();
    const int64_t count = rows_;
    uint32_t* const chosen = chosen_.data();
    const bool weighted = table_.weighted() && !apart_;
    if (weighted)
      for (int64_t i = 0; i < leaves_.count_b(); ++i) weight_b_[static_cast<size_t>(i)] = other_.weight(row_b_ + i);
    places_.begin(bins, limits, edges_.even());
    for (int64_t begin = 0; begin < leaves_.count_b(); begin += lanes) {
      const auto block = leaves_.template block<How>(begin);
      auto buffer = places_.buffer();
      for (int64_t k = 0; k < count; ++k) {
        V first, along;
        block.template quantities<How>(rows[k], first, along);
        uint32_t near = lanes_at_most(first, outermost);
        if (sighted) near &= lanes_at_most(along, farthest);
        if (itself) near &= behind(rows[k], begin);
        chosen[k] = near;
        if (weighted) put_weights(rows[k], begin, near, weights_.data() + buffer.end);
        buffer.put(first, along, near);
      }
      const int32_t* const places =
          places_.find(buffer.end, [&](int64_t at, float first, float along) { look_up_put(at, begin, first, along); });
      apart_ ? add_apart(begin, places) : table_.add_pairs(places, weights_.data(), buffer.end);
    }
  }

  // The weights of the chosen pairs.
  void put_weights(int64_t i, int64_t begin, uint32_t chosen, double* to) const {
    if (separations_) {
      for (; chosen != 0; chosen &= chosen - 1) *to++ = pair_weight(row_a_ + i, row_b_ + begin + __builtin_ctz(chosen));
      return;
    }
    Lanes<double> weights;
    load(weight_b_.data() + begin, weights);
    keep_lanes(weights * one_.weight(row_a_ + i), chosen, to);
  }

  // Add the pairs in the buffer, each to its own regions.
  void add_apart(int64_t begin, const int32_t* places) {
    const int32_t copies = static_cast<int32_t>(table_.copies());
    for (int64_t k = 0; k < rows_; ++k) {
      const int64_t row_a = row_a_ + row_[static_cast<size_t>(k)];
      for (uint32_t left = chosen_[static_cast<size_t>(k)]; left != 0; left &= left - 1) {
        const int64_t row_b = row_b_ + begin + __builtin_ctz(left);
        table_.add_pair(*places++ / copies, one_.region(row_a), other_.region(row_b), pair_weight(row_a, row_b));
      }
    }
  }

  double pair_weight(int64_t row_a, int64_t row_b) const {
    const double weight = one_.weight(row_a) * other_.weight(row_b);
    return separations_ ? weight * rule_.separation(one_.pos + row_a * D, other_.pos + row_b * D) : weight;
  }

  // Look up the pair at position `at` of the buffer.
  __attribute__((noinline)) void look_up_put(int64_t at, int64_t begin, float first, float along) {
    size_t k = 0;
    for (; at >= __builtin_popcount(chosen_[k]); ++k) at -= __builtin_popcount(chosen_[k]);
    uint32_t left = chosen_[k];
    for (; at > 0; --at) left &= left - 1;
    look_up(row_a_ + row_[k], row_b_ + begin + __builtin_ctz(left), first, along);
  }

  // Count the pairs within each edge.
  template <Quantities How>
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
    float* squares = squares_.begin(bins.lo, bins.hi);
    // Pairs with separate images are rare, so they get no special code for few edges.
    switch (itself_ || How != Quantities::plain ? 0 : bins.hi - bins.lo) {
      case 1: compare_few<1>(bins); break;
      case 2: compare_few<2>(bins); break;
      case 3: compare_few<3>(bins); break;
      case 4: compare_few<4>(bins); break;
      default: itself_ ? compare_many<How, true>(bins, squares) : compare_many<How, false>(bins, squares);
    }
    add_compared<How>(bins, pairs);
  }

  template <int Edges>
  __attribute__((flatten)) void compare_few(const Bins& bins) {
    const int32_t *const rows = row_.data(), *const end = rows + rows_;
    const EdgeBounds<float> first = edges_.first();
    FewEdges<Edges> edges(first.surely + bins.lo, first.possibly + bins.lo);
    for (int64_t begin = 0; begin < leaves_.count_b(); begin += lanes) {
      const auto block = leaves_.template block<Quantities::plain>(begin);
      for (const int32_t* row = rows; row < end; ++row) {
        V distance2, along;
        block.template quantities<Quantities::plain>(*row, distance2, along);
        edges.add(distance2);
      }
    }
    squares_.add(edges);
  }

  template <Quantities How, bool Itself>
  __attribute__((flatten)) void compare_many(const Bins& bins, float* to) {
    const EdgeBounds<float> first = edges_.first();
    // Pairs outside the last edge do not count. If no pair can be outside it, only padding is dropped: padding is
    // farther than the largest finite number.
    const V outermost(bins.hi == first.count ? first.outermost() : std::numeric_limits<float>::max());
    const int32_t *const rows = row_.data(), *const end = rows + rows_;
    for (int64_t begin = 0; begin < leaves_.count_b(); begin += lanes) {
      const auto block = leaves_.template block<How>(begin);
      for (const int32_t* row = rows; row < end; ++row) {
        V distance2, along;
        block.template quantities<How>(*row, distance2, along);
        uint32_t near = lanes_at_most(distance2, outermost);
        if (Itself) near &= behind(*row, begin);
        to = squares_.put(distance2, near, to);
        if (squares_.full(to)) to = squares_.sift(first.surely, first.possibly, to);
      }
    }
    squares_.sift(first.surely, first.possibly, to);
  }

  // Among the given rows of the first leaf, starting at `begin`, return those with pairs on both sides of an edge. The
  // pairs of the other rows are counted here.
  uint32_t split(int64_t begin, uint32_t rows, const Bins& bins) {
    PairBounds<float> bounds;
    leaves_.bounds(begin, 0, bounds);
    V gap, reach;
    load(bounds.gap, gap);
    load(bounds.reach, reach);
    const EdgeBounds<float> first = edges_.first();
    int64_t *table = table_.column(0), each = leaves_.count_b();
    uint32_t both_sides = 0, beyond = rows;  // rows above the previous edge
    for (int64_t edge = bins.lo; edge < bins.hi; ++edge) {
      uint32_t within = lanes_at_most(reach, V(first.surely[edge])) & rows;
      uint32_t none_within = ~lanes_at_most(gap, V(first.possibly[edge])) & rows;
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

  template <Quantities How>
  void add_compared(const Bins& bins, int64_t pairs) {
    int64_t outside = pairs, *table = table_.column(0);
    for (int64_t edge = bins.hi - 1; edge >= bins.lo && outside > 0; --edge) {
      int64_t inside = squares_.surely(edge);
      if (squares_.possibly(edge) != inside) inside += decide<How>(edge);
      table[edge + 1] += outside - inside;
      outside = inside;
    }
    table[bins.lo] += outside;
  }

  // The number of undecided pairs that are within an edge.
  template <Quantities How>
  __attribute__((noinline)) int64_t decide(int64_t edge) const {
    const V surely(edges_.first().surely[edge]), possibly(edges_.first().possibly[edge]);
    int64_t within = 0;
    for (int64_t i = 0; i < leaves_.count_a(); ++i) {
      const auto row = leaves_.template row<How>(i);
      for (int64_t begin = itself_ ? i / lanes * lanes : 0; begin < leaves_.count_b(); begin += lanes) {
        V distance2, along;
        row.template quantities<How>(begin, distance2, along);
        uint32_t unsure = lanes_at_most(distance2, possibly) & ~lanes_at_most(distance2, surely) & behind(i, begin);
        for (; unsure != 0; unsure &= unsure - 1)
          within += is_within(row_a_ + i, row_b_ + begin + __builtin_ctz(unsure), edge);
      }
    }
    return within;
  }

  template <Quantities How>
  __attribute__((flatten)) void look_up_row(const PairBins<Mode, float>& limits, int64_t i) {
    const auto row = leaves_.template row<How>(i);
    const bool to_middle = How == Quantities::sighted;
    const V outermost(to_middle ? limits.farthest2() : limits.first().outermost()), farthest(limits.farthest_along());
    for (int64_t begin = itself_ ? i / lanes * lanes : 0; begin < leaves_.count_b(); begin += lanes) {
      V first, along;
      // Without a direction, only the distance is known.
      to_middle ? row.distances(begin, first) : row.template quantities<How>(begin, first, along);
      uint32_t near = lanes_at_most(first, outermost) & behind(i, begin);
      if (sighted && !to_middle) near &= lanes_at_most(along, farthest);
      if (near != 0) look_up_lanes(row_a_ + i, row_b_ + begin, near, first, along);
    }
  }

  // This function is not inlined, because the compiler would repeat its code for each kind of row.
  __attribute__((noinline, flatten)) void look_up_lanes(int64_t row_a, int64_t row_b, uint32_t near, const V& first,
                                                        const V& along) {
    float firsts[lanes], alongs[lanes];
    store(first, firsts);
    if (sighted) store(along, alongs);
    for (; near != 0; near &= near - 1) {
      const int lane = __builtin_ctz(near);
      look_up(row_a, row_b + lane, firsts[lane], sighted ? alongs[lane] : 0);
    }
  }

  // Decide in float64.
  void look_up_to_middle(int64_t row_a, int64_t row_b) {
    const Sighted pair = rule_.sighted(one_.pos + row_a * D, other_.pos + row_b * D);
    T first, second;
    rule_.quantities(pair, &first, &second);
    int64_t edge = first_.first_within(first, first, [&](double exact) { return rule_.within_first(pair, exact); });
    if (edge == 0 || edge == first_.count) return;
    int64_t edge_b =
        second_.first_within(second, second, [&](double exact) { return rule_.within_second(pair, exact); });
    if (edge_b > 0 && edge_b < second_.count) add(row_a, row_b, edge, edge_b);
  }

  // Both quantities of a pair in the precision of the positions. In float64, the given ones were rounded to float32.
  struct Pair {
    T first, along;
  };
  Pair given(int64_t row_a, int64_t row_b, float first, float along) const {
    if (!wide) return {static_cast<T>(first), static_cast<T>(along)};
    Pair pair{};
    for (int d = 0; d < D; ++d) {
      T apart = wrapped_difference<T>(one_.tree.x[d][row_a], other_.tree.x[d][row_b], scale_.period[d],
                                      scale_.period_rest[d]);
      if (Mode != PairMode::across_along || d < D - 1) pair.first += apart * apart;
      pair.along = std::fabs(apart);
    }
    return pair;
  }

  bool is_within(int64_t row_a, int64_t row_b, int64_t edge) const {
    const size_t at = static_cast<size_t>(edge);
    if constexpr (wide) {
      const T first = given(row_a, row_b, 0, 0).first;
      if (first <= first_.surely[at] || first > first_.possibly[at]) return first <= first_.surely[at];
    }
    return rule_.within_first(one_.pos + row_a * D, other_.pos + row_b * D, first_.exact[at]);
  }

  void look_up(int64_t row_a, int64_t row_b, float local_first, float local_along) {
    if (sighted && rule_.to_middle()) return look_up_to_middle(row_a, row_b);
    const T *a = one_.pos + row_a * D, *b = other_.pos + row_b * D;
    const auto [first, along] = given(row_a, row_b, local_first, local_along);
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
    double weight = table_.weighted() ? pair_weight(row_a, row_b) : 0;
    if (apart_) {
      table_.add_pair(edge, edge_b, one_.region(row_a), other_.region(row_b), weight);
    } else {
      table_.add(edge, edge_b, 1, weight);
    }
  }

  void cosine_range(T distance2, T along, T& low, T& high) const {
    if (!(distance2 > PairBins<Mode, T>::vanishing)) {
      low = 0, high = std::numeric_limits<T>::infinity();
      return;
    }
    T cosine = along / std::sqrt(distance2), slip = rule_.slip(distance2);
    low = cosine - slip, high = cosine + slip;
  }

  static constexpr bool wide = std::is_same<T, double>::value;

  const Side &one_, &other_;
  const PairRule<D, T>& rule_;
  const EdgeTable<T, OctaveCells>& first_;
  const EdgeTable<T, EqualCells>& second_;
  const Scale<D, T>& scale_;
  const bool separations_;
  PairTable& table_;
  PairLeaves<Mode, D, T> leaves_;
  LeafEdges<Mode, D, T> edges_;
  PairSquares squares_;
  PairPlaces<Mode> places_;
  // The current leaves: their first rows, and the rows of the first leaf that are not counted as a whole.
  int64_t row_a_ = 0, row_b_ = 0, rows_ = 0;
  std::vector<int32_t> row_;
  std::vector<uint32_t> chosen_;  // the buffered pairs of each row
  std::vector<double> weight_b_;  // of the second leaf
  std::vector<double> weights_;   // of the buffered pairs
  bool itself_ = false;           // both are the same leaf, and each of its pairs counts once
  bool apart_ = false;            // the regions differ from pair to pair
};

}  // namespace jztree
