// Finds the bins of pairs by vectors: for pairs with two quantities, or for distances with weights or regions.
//
// The first quantity is compared with the few edges that can separate the pairs of two leaves; with AVX-512, cells give
// the edge (pair_edge_cells.h). Edges of the second quantity are usually evenly spaced, so a multiplication gives the
// bin; other edges are also compared. Pairs so close to an edge that float64 must decide are only detected here.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/cpu/lanes.h"
#include "pair_bins.h"
#include "pair_edge_cells.h"
#include "pair_leaf_edges.h"
#include "sph/kernel_lanes.h"

namespace jztree {

// The place of each edge, for consecutive places of the second quantity.
inline std::vector<float> multiples(int64_t edges, int64_t step) {
  std::vector<float> found;
  for (int64_t edge = 0; edge <= edges; ++edge) found.push_back(static_cast<float>(edge * step));
  return found;
}

// Finds the places of the pairs of two leaves. Loops use a local copy, so that the compiler knows that no write to
// memory changes it.
template <PairMode Mode>
class PlaceFinder {
 public:
  using V = Lanes<float>;
  using Places = Lanes<int32_t>;

  // place, place_b: of each edge of both quantities, and of values above the last.
  PlaceFinder(const Bins& bins, const PairBins<Mode, float>& limits, const EvenEdges<float>& even, const float* place,
              const float* place_b)
      : bins_(bins),
        first_(limits.first()),
        second_(limits.second()),
        even_(even),
        errors_(limits.errors()),
        place_(place),
        place_b_(place_b),
        may_vanish_(!(first_.surely[std::max<int64_t>(bins.lo - 1, 0)] > PairBins<Mode, float>::vanishing)) {
#if defined(__AVX512F__)
    const float max_along = limits.farthest_along();
    float slip = 0;
    if (errors_.per_distance2 > 0)
      slip = (limits.farthest2() + max_along * max_along) * 2 * errors_.per_distance2 + errors_.across2;
    const float top = first_.possibly[std::min(bins.hi, first_.count - 1)];
    has_cells_ = cells_.set(first_, bins.lo, bins.hi, top, slip, static_cast<int64_t>(place[1]));
#endif
  }

  // Find the places of pairs with these first quantities and separations along the line of sight. Returns the undecided
  // pairs. own_sight: whether each pair has a separate line of sight.
  template <bool OwnSight>
  uint32_t find(const V& first, const V& along, Places& place) const {
    V slip{};
    if (Mode == PairMode::across_along && OwnSight)
      slip = (first + along * along) * errors_.per_distance2 + V(errors_.across2);
    uint32_t unsure = find_first(first, slip, place);
    if (!sighted) return unsure;
    Places place_b;
    if (Mode == PairMode::across_along) {
      unsure = either(unsure, find_second(along, V(errors_.along), place_b));
    } else {
      const V inverse = inverse_root(first);
      V slip_b{};
      if (errors_.along > 0 || errors_.angle > 0) slip_b = sum_of_product(inverse, V(errors_.along), V(errors_.angle));
      unsure = either(unsure, find_second(along * inverse, slip_b, place_b));
      if (may_vanish_) unsure = either(unsure, lanes_at_most(first, V(PairBins<Mode, float>::vanishing)));
    }
    place = place + place_b;
    return unsure;
  }

 private:
  static constexpr bool sighted = Mode != PairMode::distance;

  uint32_t find_first(const V& x, const V& slip, Places& place) const {
#if defined(__AVX512F__)
    if (has_cells_) return cells_.find(x, slip, place);
#endif
    return compare(x, first_, bins_.lo, bins_.hi, place_, slip, place);
  }

  uint32_t find_second(const V& x, const V& slip, Places& place) const {
    return even_.is_even ? step(x, slip, place) : compare(x, second_, bins_.lo_b, bins_.hi_b, place_b_, slip, place);
  }

  // For each number, the entry of `places` of the first edge that contains it.
  static uint32_t compare(const V& x, const EdgeBounds<float>& edges, int64_t lo, int64_t hi, const float* places,
                          const V& slip, Places& place) {
    const float *surely = edges.surely, *possibly = edges.possibly;
    const V low = x - slip, high = x + slip;
    V bound(std::numeric_limits<float>::infinity()), found(places[hi]);
    for (int64_t edge = hi - 1; edge >= lo; --edge) {
      const auto above = low > V(possibly[edge]);
      found = choose(above, found, V(places[edge]));
      bound = choose(above, bound, V(surely[edge]));
    }
    place = whole_part(found);
    return ~lanes_at_most(high, bound) & all_lanes;
  }

  // The same for evenly spaced edges. All steps are one too many, because the first place is 0.
  uint32_t step(const V& x, const V& slip, Places& place) const {
    const V exact = sum_of_product(x, V(even_.per_step), V(1 - even_.start * even_.per_step));
    const V steps = maximum(minimum(exact, V(even_.max_steps + 1)), V(even_.min_steps + 1));
    const V off = magnitude(steps - nearest_whole(steps));
    place = whole_part(steps);
    return lanes_at_most(off, sum_of_product(steps, V(even_.tolerance), slip * even_.per_step));
  }

  static uint32_t either(uint32_t a, uint32_t b) {
#if defined(__AVX512F__)
    return _kor_mask16(static_cast<__mmask16>(a), static_cast<__mmask16>(b));  // saves moves between registers
#else
    return a | b;
#endif
  }

  static constexpr uint32_t all_lanes = (uint32_t{1} << lanes) - 1;

  const Bins bins_;
  const EdgeBounds<float> first_, second_;
  const EvenEdges<float> even_;
  const PairErrors<float> errors_;
  const float *const place_, *const place_b_;
  // Whether pairs may be so close that squares have lost digits. In no bin are the pairs within the first edge.
  const bool may_vanish_;
#if defined(__AVX512F__)
  EdgeCells cells_;
  bool has_cells_;
#endif
};

}  // namespace jztree
