// The possible bins of the pairs of two boxes.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "pair_leaves.h"
#include "pair_problem.h"

namespace jztree {

// No pair is within an edge before `lo`, and every pair is within the edges from `hi` on. The same holds for the second
// quantity.
struct Bins {
  int64_t lo, hi, lo_b, hi_b;
  bool one() const { return lo == hi && lo_b == hi_b; }
  // Whether few edges remain. Narrowing takes one step per edge, so 8 edges cost about as much as the direct lookup of
  // a few pairs.
  bool few() const { return hi - lo + hi_b - lo_b <= 8; }
};

template <PairMode Mode, int D, typename T>
class PairBins {
 public:
  static constexpr bool sighted = Mode != PairMode::distance;
  // Squares below this have lost digits.
  static constexpr T vanishing = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon() * 64;

  explicit PairBins(const PairProblem<D, T>& problem)
      : rule_(problem.rule),
        first_(problem.first),
        second_(problem.second),
        to_middle_(sighted && problem.rule.to_middle()),
        farthest2_(to_middle_ ? farthest_distance2<Mode, T>(first_.outermost(), second_.outermost())
                              : first_.outermost()),
        farthest_along_(Mode == PairMode::across_along ? second_.outermost() : std::numeric_limits<T>::max()) {}

  // Whether each pair has a separate line of sight.
  bool to_middle() const { return to_middle_; }
  // Pairs farther apart than this are in no bin. If each pair has a separate line of sight, this is the distance in all
  // dimensions.
  T farthest2() const { return farthest2_; }
  // Pairs farther apart than this along a common line of sight are in no bin.
  T farthest_along() const { return farthest_along_; }

  Bins all() const { return {0, first_.count, 0, second_.count}; }
  bool counts(const Bins& bins) const {
    if (bins.lo == first_.count || bins.hi == 0) return false;
    return !sighted || (bins.lo_b < second_.count && bins.hi_b > 0);
  }

  // Narrow the possible bins of pairs by the i-th of the bounds.
  void narrow(const PairBounds<T>& bounds, int64_t i, Bins& bins) const {
    if (sighted && to_middle_) return narrow_to_middle(bounds, i, bins);
    T gap = bounds.gap[i], reach = bounds.reach[i];
    first_.narrow(gap, reach, bins.lo, bins.hi);
    if (!sighted) return;
    T low = bounds.gap_along[i], high = bounds.reach_along[i];
    // Within an edge of 0 are only pairs at distance 0.
    if (Mode == PairMode::across_along && bins.lo == 0 && first_.exact[0] == 0 && low * low > first_.possibly[0])
      bins.lo = 1;
    if (Mode == PairMode::distance_cosine) {
      // Rounding of positions changes small angles a lot, so pairs of few particles are tested one by one.
      if (rule_.cosine_slip > 0 || !(gap > vanishing)) return;
      low = std::sqrt(low * low / reach) * below_one<T>;
      high = std::sqrt(high * high / gap) * above_one<T>;
    }
    second_.narrow(low, high, bins.lo_b, bins.hi_b);
  }

  // The entries of the bounds whose pairs may be in bins.
  uint32_t near(const PairBounds<T>& bounds) const {
    Lanes<T> gap;
    load(bounds.gap, gap);
    if constexpr (Mode == PairMode::across_along) {
      Lanes<T> along;
      load(bounds.gap_along, along);
      if (!to_middle_)
        return lanes_at_most(gap, Lanes<T>(farthest2_)) & lanes_at_most(along, Lanes<T>(farthest_along_));
      gap = (gap + along * along) * below_one<T>;
    }
    return lanes_at_most(gap, Lanes<T>(farthest2_));
  }

 private:
  // The distance bounds both quantities for any line of sight.
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

  const PairRule<D, T>& rule_;
  const EdgeTable<T, OctaveCells>& first_;
  const EdgeTable<T, EqualCells>& second_;
  const bool to_middle_;
  const T farthest2_, farthest_along_;
};

}  // namespace jztree
