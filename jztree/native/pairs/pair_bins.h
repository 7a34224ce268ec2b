// The possible bins of the pairs of two boxes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "common/cpu/lanes.h"
#include "pair_edges.h"
#include "sph/kernel_lanes.h"

namespace jztree {

// Above this number, edges are not compared one by one.
constexpr int64_t few_edges = 32;

// Bounds of the pairs of the particles of `lanes` boxes: lower and upper bounds of both quantities. The second one is
// always a length along the line of sight.
template <typename T>
struct PairBounds {
  T gap[lanes], reach[lanes], gap_along[lanes], reach_along[lanes];
};

// No pair is within an edge before `lo`, and every pair is within the edges from `hi` on. The same holds for the second
// quantity.
struct Bins {
  int64_t lo, hi, lo_b, hi_b;
  bool is_single() const { return lo == hi && lo_b == hi_b; }
  // Whether few edges remain. Narrowing takes one step per edge, so 8 edges cost about as much as the direct lookup of
  // a few pairs.
  bool is_short() const { return hi - lo + hi_b - lo_b <= 8; }
};

// The errors of the quantities of pairs, in addition to the tolerance of the edges.
template <typename T>
struct PairErrors {
  T along = 0;  // of lengths along the line of sight, independent of their size
  T angle = 0;  // of the direction of the line of sight
  // The error of squares across the line of sight: this, and a multiple of the squared distance.
  T across2 = 0, per_distance2 = 0;
};

template <PairMode Mode, typename T>
class PairBins {
 public:
  static constexpr bool sighted = Mode != PairMode::distance;
  // Squares below this have lost digits.
  static constexpr T vanishing = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon() * 64;

  // from_zero: whether the first edge is 0. to_middle: whether each pair has a separate line of sight.
  PairBins(const EdgeBounds<T>& first, const EdgeBounds<T>& second, bool from_zero, bool to_middle,
           const PairErrors<T>& errors)
      : first_(first),
        second_(second),
        from_zero_(from_zero),
        errors_(errors),
        farthest2_(to_middle ? farthest_distance2<Mode, T>(first_.outermost(), second.count ? second.outermost() : T{0})
                             : first_.outermost()),
        farthest_along_(Mode == PairMode::across_along ? second_.outermost() : std::numeric_limits<T>::max()) {}

  const EdgeBounds<T>& first() const { return first_; }
  const EdgeBounds<T>& second() const { return second_; }
  const PairErrors<T>& errors() const { return errors_; }

  // Pairs farther apart than this are in no bin. If each pair has a separate line of sight, this is the distance in all
  // dimensions.
  T farthest2() const { return farthest2_; }
  // Pairs farther apart than this along the line of sight are in no bin.
  T farthest_along() const { return farthest_along_; }

  Bins all() const { return {0, first_.count, 0, second_.count}; }
  bool counts(const Bins& bins) const {
    if (bins.lo == first_.count || bins.hi == 0) return false;
    return !sighted || (bins.lo_b < second_.count && bins.hi_b > 0);
  }

  // Narrow the possible bins of pairs by the i-th of the bounds.
  void narrow(const PairBounds<T>& bounds, int64_t i, Bins& bins) const {
    T gap = bounds.gap[i], reach = bounds.reach[i];
    first_.narrow(gap, reach, bins.lo, bins.hi);
    if (!sighted) return;
    T low = bounds.gap_along[i], high = bounds.reach_along[i];
    // Within an edge of 0 are only pairs at distance 0.
    if (Mode == PairMode::across_along && from_zero_ && bins.lo == 0 && low * low > first_.possibly[0]) bins.lo = 1;
    if (Mode == PairMode::distance_cosine) {
      if (!(gap > vanishing)) return;
      const T error = errors_.along / std::sqrt(gap) + errors_.angle;
      low = std::sqrt(low * low / reach) * below_one<T> - error;
      high = std::sqrt(high * high / gap) * above_one<T> + error;
    }
    second_.narrow(low, high, bins.lo_b, bins.hi_b);
  }

  // Narrow the edges of the first quantity that separate pairs in bins, by all of the bounds.
  void narrow_first(const PairBounds<T>& bounds, int64_t& lo, int64_t& hi) const {
    Lanes<T> gap, reach;
    load(bounds.gap, gap);
    load(bounds.reach, reach);
    const auto in_no_bin = gap > Lanes<T>(first_.outermost());
    const Lanes<T> least(least_lane(gap)), largest(-least_lane(choose(in_no_bin, Lanes<T>(), -reach)));
    int64_t none_within = 0, not_all_within = 0;
    for (int64_t edge = lo; edge < hi; edge += lanes) {
      const uint32_t valid = (uint32_t{1} << std::min(hi - edge, lanes)) - 1;
      Lanes<T> surely, possibly;
      load(first_.surely + edge, surely);
      load(first_.possibly + edge, possibly);
      none_within += __builtin_popcount(~lanes_at_most(least, possibly) & valid);
      not_all_within += __builtin_popcount(~lanes_at_most(largest, surely) & valid);
    }
    hi = lo + not_all_within;
    lo = std::min(lo + none_within, hi);
  }

  // The same for each of the bounds.
  void narrow_each(const PairBounds<T>& bounds, const Bins& bins, int32_t* lo, int32_t* hi) const {
    Lanes<T> gap, reach;
    load(bounds.gap, gap);
    load(bounds.reach, reach);
    Lanes<T> none_within{}, all_within{};
    for (int64_t edge = bins.lo; edge < bins.hi; ++edge) {
      none_within = none_within + choose(gap > Lanes<T>(first_.possibly[edge]), Lanes<T>(T{1}), Lanes<T>{});
      all_within = all_within + choose(reach > Lanes<T>(first_.surely[edge]), Lanes<T>{}, Lanes<T>(T{1}));
    }
    store(Lanes<T>(static_cast<T>(bins.lo)) + none_within, lo);
    store(Lanes<T>(static_cast<T>(bins.hi)) - all_within, hi);
  }

  // For each of the bounds, the first and the last place of second quantities in bins with even edges.
  template <typename Even>
  void narrow_second(const PairBounds<T>& bounds, const Even& even, int32_t* first, int32_t* last) const {
    using V = Lanes<T>;
    V low, high;
    load(bounds.gap_along, low);
    load(bounds.reach_along, high);
    if (Mode == PairMode::distance_cosine) {
      V gap, reach;
      load(bounds.gap, gap);
      load(bounds.reach, reach);
      low = low / square_root(larger<V>(reach, V(vanishing))), high = high / square_root(larger<V>(gap, V(vanishing)));
    }
    const V origin(1 - even.start * even.per_step), per_step(even.per_step);
    // The errors of places are much smaller than this.
    constexpr T slack = T(0.05);
    low = low * per_step + origin - V(slack), high = high * per_step + origin + V(slack);
    store(larger<V>(smaller<V>(low, V(even.max_steps + 1)), V(T{1})), first);
    store(smaller<V>(larger<V>(high, V(T{0})), V(static_cast<T>(second_.count - 1))), last);
  }

  // The entries of the bounds whose pairs are in bins, up to rounding.
  uint32_t surely_inside(const PairBounds<T>& bounds) const {
    Lanes<T> reach;
    load(bounds.reach, reach);
    uint32_t mask = lanes_at_most(reach, Lanes<T>(first_.surely[first_.count - 1]));
    if constexpr (Mode == PairMode::across_along) {
      Lanes<T> along;
      load(bounds.reach_along, along);
      mask &= lanes_at_most(along, Lanes<T>(farthest_along_));
    }
    return mask;
  }

  // The entries of the bounds whose pairs may be in bins.
  uint32_t candidates(const PairBounds<T>& bounds) const {
    Lanes<T> gap;
    load(bounds.gap, gap);
    uint32_t mask = lanes_at_most(gap, Lanes<T>(first_.outermost()));
    if constexpr (Mode == PairMode::across_along) {
      Lanes<T> along;
      load(bounds.gap_along, along);
      mask &= lanes_at_most(along, Lanes<T>(farthest_along_));
    }
    return mask;
  }

 private:
  const EdgeBounds<T> first_, second_;
  const bool from_zero_;
  const PairErrors<T> errors_;
  const T farthest2_, farthest_along_;
};

}  // namespace jztree
