// Bounds of both quantities of the pairs of two boxes, and the bins that these allow.
#pragma once

#include <cmath>
#include <limits>

#include "pair_problem.cuh"
#include "pair_tally.cuh"

namespace jztree {

// No pair is within an edge before `lo`, and every pair is within the edges from `hi` on. The same holds for the second
// quantity.
struct PairBinRange {
  int lo = 0, hi = 0, lo_b = 0, hi_b = 0;
  __device__ bool is_single() const { return lo == hi && lo_b == hi_b; }
};

template <PairMode Mode, int D, typename T>
struct PairBinFinder {
  static constexpr bool sighted = Mode != PairMode::distance;
  // Squares below this have lost digits.
  static constexpr T vanishing = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon() * 64;

  const PairProblem<D, T>& in;
  const PairSetup<D, T>& setup;

  // If each pair has a separate line of sight, the last dimension represents it until the lines of sight are known.
  __device__ bool to_middle() const { return sighted && setup.rule.to_middle(); }
  __device__ int axis() const { return to_middle() ? D - 1 : setup.rule.axis; }
  __device__ bool is_across(int d) const { return Mode != PairMode::across_along || d != axis(); }

  // The bins of pairs with one particle between `low` and `high` and the other in the box. coincide: whether all
  // particles are at one place, so that no bin holds them.
  __device__ PairBinRange between(const T* low, const T* high, const NodeBox<D, T>& box, bool* coincide) const {
    T gap_sum = 0, reach_sum = 0, along_gap = 0, along_reach = 0, reaches = 0;
    for (int d = 0; d < D; ++d) {
      T gap = interval_gap<T>(low[d], high[d], box.low[d], box.high[d], setup.gap_period[d]);
      T reach = interval_reach(low[d], high[d], box.low[d], box.high[d], setup.scale.period[d]);
      reaches += reach;
      if (is_across(d)) {
        gap_sum += gap * gap;
        reach_sum += reach * reach;
      }
      if (sighted && d == axis()) along_gap = gap, along_reach = reach;
    }
    *coincide = setup.rule.distances.exact_zero && reaches == 0;
    PairBinRange bins;
    if (to_middle()) {
      narrow_to_middle(gap_sum, reach_sum, along_gap, along_reach, &bins);
      return bins;
    }
    T gap = gap_sum * below_one<T>, reach = reach_sum * above_one<T>;
    in.first.narrow(gap, reach, &bins.lo, &bins.hi);
    if (!sighted) return bins;
    along_gap *= below_one<T>;
    // Within an edge of 0 are only pairs at distance 0.
    if (Mode == PairMode::across_along && bins.lo == 0 && in.first.exact[0] == 0 &&
        along_gap * along_gap > in.first.possibly[0])
      bins.lo = 1;
    narrow_second(gap, reach, along_gap, along_reach * above_one<T>, &bins);
    return bins;
  }

  __device__ bool counts(const PairBinRange& bins) const {
    if (bins.lo == in.first.count || bins.hi == 0) return false;
    return !sighted || (bins.lo_b < in.second.count && bins.hi_b > 0);
  }

  // The bin of two particles with this squared first quantity and distance along the line of sight; a, b: their input
  // positions.
  __device__ int bin_of(const PairTotals& totals, const PairBinRange& bins, T first, T along, const T* a,
                        const T* b) const {
    const PairRule<D, T>& rule = setup.rule;
    if (to_middle()) return bin_to_middle(totals, rule.sighted(a, b));
    int edge = in.first.first_within(first, first, bins.lo, bins.hi,
                                     [&](double exact) { return rule.within_first(a, b, exact); });
    if (edge == 0 || edge == in.first.count) return -1;
    if (!sighted) return totals.bin(edge, in.first.count, 0, 0);
    T low = along, high = along;
    if (Mode == PairMode::distance_cosine) cosine_range(first, along, &low, &high);
    int edge_b = in.second.first_within(low, high, bins.lo_b, bins.hi_b,
                                        [&](double exact) { return rule.within_second(a, b, exact); });
    return totals.bin(edge, in.first.count, edge_b, in.second.count);
  }

 private:
  __device__ int bin_to_middle(const PairTotals& totals, const Sighted& pair) const {
    T first, second;
    setup.rule.quantities(pair, &first, &second);
    int edge = in.first.first_within(first, first, 0, in.first.count,
                                     [&](double exact) { return setup.rule.within_first(pair, exact); });
    if (edge == 0 || edge == in.first.count) return -1;
    int edge_b = in.second.first_within(second, second, 0, in.second.count,
                                        [&](double exact) { return setup.rule.within_second(pair, exact); });
    return totals.bin(edge, in.first.count, edge_b, in.second.count);
  }

  // The distance bounds both quantities for any line of sight.
  __device__ void narrow_to_middle(T gap, T reach, T low, T high, PairBinRange* bins) const {
    bins->hi_b = in.second.count;
    if (Mode == PairMode::distance_cosine) {
      in.first.narrow(gap * below_one<T>, reach * above_one<T>, &bins->lo, &bins->hi);
      return;
    }
    gap = (gap + low * low) * below_one<T>, reach = (reach + high * high) * above_one<T>;
    in.first.narrow(T{0}, reach, &bins->lo, &bins->hi);
    in.second.narrow(T{0}, std::sqrt(reach) * above_one<T>, &bins->lo_b, &bins->hi_b);
    T last = in.first.possibly[in.first.count - 1], last_b = in.second.possibly[in.second.count - 1];
    if (gap > farthest_distance2<Mode, T>(last, last_b)) bins->lo = in.first.count;
  }

  __device__ void narrow_second(T gap, T reach, T low, T high, PairBinRange* bins) const {
    bins->hi_b = in.second.count;
    if (Mode == PairMode::distance_cosine) {
      // Rounding of positions changes small angles a lot, so pairs of few particles are tested one by one.
      if (setup.rule.cosine_slip > 0 || !(gap > vanishing)) return;
      low = std::sqrt(low * low / reach) * below_one<T>;
      high = std::sqrt(high * high / gap) * above_one<T>;
    }
    in.second.narrow(low, high, &bins->lo_b, &bins->hi_b);
  }

  __device__ void cosine_range(T distance2, T along, T* low, T* high) const {
    if (!(distance2 > vanishing)) {
      *low = 0, *high = std::numeric_limits<T>::infinity();
      return;
    }
    T cosine = along / std::sqrt(distance2), slip = setup.rule.slip(distance2);
    *low = cosine - slip, *high = cosine + slip;
  }
};

}  // namespace jztree
