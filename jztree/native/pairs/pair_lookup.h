// The bin of a single pair, exactly: decided in float64 from the input positions if the quantities of the pair are
// close to an edge.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "pair_bins.h"
#include "pair_problem.h"

namespace jztree {

template <PairMode Mode, int D, typename T>
class PairLookup {
 public:
  explicit PairLookup(const PairProblem<D, T>& problem)
      : one_(problem.one),
        other_(problem.other),
        rule_(problem.rule),
        first_(problem.first),
        second_(problem.second),
        scale_(problem.scale) {}

  // The place of a pair in the table of counts (pair_table.h), given its quantities in the coordinates of two leaves; 0
  // if it is in no bin.
  int64_t place_of(int64_t row_a, int64_t row_b, float local_first, float local_along) const {
    if (sighted && rule_.to_middle()) return place_to_middle(row_a, row_b);
    const T *a = one_.pos + row_a * D, *b = other_.pos + row_b * D;
    const auto [first, along] = given(row_a, row_b, local_first, local_along);
    int64_t edge = first_.first_within(first, first, [&](double exact) { return rule_.within_first(a, b, exact); });
    if (edge == 0 || edge == first_.count) return 0;
    int64_t edge_b = 0;
    if (sighted) {
      T low = along, high = along;
      if (Mode == PairMode::distance_cosine) cosine_range(first, along, low, high);
      edge_b = second_.first_within(low, high, [&](double exact) { return rule_.within_second(a, b, exact); });
      if (edge_b == 0 || edge_b == second_.count) return 0;
    }
    return edge * (second_.count + 1) + edge_b;
  }

  // Whether the first quantity of a pair is within an edge.
  bool is_within(int64_t row_a, int64_t row_b, int64_t edge) const {
    const size_t index = static_cast<size_t>(edge);
    if constexpr (wide) {
      const T first = given(row_a, row_b, 0, 0).first;
      if (first <= first_.surely[index] || first > first_.possibly[index]) return first <= first_.surely[index];
    }
    return rule_.within_first(one_.pos + row_a * D, other_.pos + row_b * D, first_.exact[index]);
  }

 private:
  static constexpr bool sighted = Mode != PairMode::distance, wide = std::is_same<T, double>::value;

  // With a separate line of sight.
  int64_t place_to_middle(int64_t row_a, int64_t row_b) const {
    const Sighted pair = rule_.sighted(one_.pos + row_a * D, other_.pos + row_b * D);
    T first, second;
    rule_.quantities(pair, &first, &second);
    int64_t edge = first_.first_within(first, first, [&](double exact) { return rule_.within_first(pair, exact); });
    if (edge == 0 || edge == first_.count) return 0;
    int64_t edge_b =
        second_.first_within(second, second, [&](double exact) { return rule_.within_second(pair, exact); });
    return edge_b > 0 && edge_b < second_.count ? edge * (second_.count + 1) + edge_b : 0;
  }

  // Both quantities of a pair in the precision of the positions. In float64, the given ones were rounded to float32.
  struct Pair {
    T first, along;
  };
  Pair given(int64_t row_a, int64_t row_b, float first, float along) const {
    if (!wide) return {static_cast<T>(first), static_cast<T>(along)};
    Pair pair{};
    for (int d = 0; d < D; ++d) {
      T displacement = wrapped_difference<T>(one_.tree.x[d][row_a], other_.tree.x[d][row_b], scale_.period[d],
                                             scale_.period_rest[d]);
      if (Mode != PairMode::across_along || d < D - 1) pair.first += displacement * displacement;
      pair.along = std::fabs(displacement);
    }
    return pair;
  }

  void cosine_range(T distance2, T along, T& low, T& high) const {
    if (!(distance2 > PairBins<Mode, T>::vanishing)) {
      low = 0, high = std::numeric_limits<T>::infinity();
      return;
    }
    T cosine = along / std::sqrt(distance2), slip = rule_.slip(distance2);
    low = cosine - slip, high = cosine + slip;
  }

  const PairSide<D, T>&one_, &other_;
  const PairRule<D, T>& rule_;
  const EdgeTable<T, OctaveCells>& first_;
  const EdgeTable<T, EqualCells>& second_;
  const Scale<D, T>& scale_;
};

}  // namespace jztree
