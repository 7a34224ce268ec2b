// Finds the bins of pairs by vectors: for pairs with two quantities, or for distances with weights or regions.
//
// The first quantity is compared with the few edges that can separate the pairs; with AVX2, the number of edges below
// it selects the place from a register; with AVX-512, cells give the edge (pair_edge_cells.h). Edges of the second
// quantity are usually evenly spaced, so a multiplication gives the bin; other edges are also compared. Pairs so close
// to an edge that float64 must decide are only detected here.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "common/cpu/lanes.h"
#include "pair_bins.h"
#include "pair_edge_cells.h"
#include "pair_leaf_edges.h"
#include "sph/kernel_lanes.h"

namespace jztree {

// Some of the lanes. Without AVX-512, a vector, because combining vectors takes less time than moving their bits.
#if defined(__AVX512F__)
using SomeLanes = __mmask16;
inline SomeLanes at_most(const Lanes<float>& a, const Lanes<float>& b) {
  return _mm512_cmp_ps_mask((__m512)a.part[0], (__m512)b.part[0], _CMP_LE_OQ);
}
inline SomeLanes above(const Lanes<float>& a, const Lanes<float>& b) {
  return _mm512_cmp_ps_mask((__m512)a.part[0], (__m512)b.part[0], _CMP_GT_OQ);
}
inline SomeLanes below(const Lanes<int32_t>& a, const Lanes<int32_t>& b) {
  return _mm512_cmplt_epi32_mask((__m512i)a.part[0], (__m512i)b.part[0]);
}
inline uint32_t bits(SomeLanes some) { return some; }
#else
using SomeLanes = Lanes<float>::Mask;
inline SomeLanes at_most(const Lanes<float>& a, const Lanes<float>& b) {
  SomeLanes out;
  Lanes<float>::each_register([&](int i) { out.part[i] = a.part[i] <= b.part[i]; });
  return out;
}
inline SomeLanes above(const Lanes<float>& a, const Lanes<float>& b) { return a > b; }
inline SomeLanes below(const Lanes<int32_t>& a, const Lanes<int32_t>& b) {
  SomeLanes out;
  Lanes<float>::each_register([&](int i) { out.part[i] = a.part[i] < b.part[i]; });
  return out;
}
inline SomeLanes operator&(const SomeLanes& a, const SomeLanes& b) {
  SomeLanes out;
  Lanes<float>::each_register([&](int i) { out.part[i] = a.part[i] & b.part[i]; });
  return out;
}
inline SomeLanes operator|(const SomeLanes& a, const SomeLanes& b) {
  SomeLanes out;
  Lanes<float>::each_register([&](int i) { out.part[i] = a.part[i] | b.part[i]; });
  return out;
}
inline uint32_t bits(const SomeLanes& some) {
  uint32_t bits = 0;
  Lanes<float>::each_register([&](int i) {
#if defined(__AVX2__)
    const auto part = static_cast<uint32_t>(_mm256_movemask_ps((__m256)some.part[i]));
#elif defined(__SSE2__)
    const auto part = static_cast<uint32_t>(_mm_movemask_ps((__m128)some.part[i]));
#else
    uint32_t part = 0;
    for (int lane = 0; lane < Lanes<float>::width; ++lane) part |= (some.part[i][lane] & 1u) << lane;
#endif
    bits |= part << i * Lanes<float>::width;
  });
  return bits;
}
#endif

// The place of each edge, for consecutive places of the second quantity.
inline std::vector<int32_t> multiples(int64_t edges, int64_t step, int64_t start) {
  std::vector<int32_t> found;
  for (int64_t edge = 0; edge <= edges + lanes; ++edge) found.push_back(static_cast<int32_t>(start + edge * step));
  return found;
}

// Finds steps in the bits of floats. Numbers from 2^n to 2^(n + 1) are evenly spaced, so the bits of 2^n plus a number
// of steps hold the whole steps, and below them the fraction of a step.
struct StepBits {
  float per_step;
  double origin;
  int32_t lower, upper;  // the bits of the smallest and the largest number of steps
  int32_t digits;        // of the fraction
  int32_t tolerance;     // steps nearer than these bits to a whole number are undecided
  int32_t first;         // what the bits of no steps hold above the fraction
  float unit, per_bit;   // the bits of one step, and of one unit of the quantity

  // All steps are one too many, because the first place is 0.
  // slip: the error of every number.
  explicit StepBits(const EvenEdges<float>& edges, float slip = 0) : per_step(edges.per_step) {
    int exponent;
    std::frexp(edges.max_steps + 2, &exponent);
    digits = std::max(std::numeric_limits<float>::digits - 1 - exponent, 0);
    const float power = std::ldexp(1.f, exponent);
    unit = static_cast<float>(1 << digits);
    per_bit = per_step * unit;
    origin = power + (1 - static_cast<double>(edges.start) * static_cast<double>(per_step));
    first = bits(power) >> digits;
    lower = bits(power + edges.min_steps + 1);
    upper = bits(power + edges.max_steps + 1);
    // The origin and the sum are rounded.
    tolerance =
        4 + static_cast<int32_t>(std::min(1.f, edges.tolerance * (edges.max_steps + 2) + slip * per_step) * unit);
  }

 private:
  static int32_t bits(float x) {
    int32_t out;
    std::memcpy(&out, &x, sizeof(out));
    return out;
  }
};

// Finds the places of the pairs of two leaves. Loops use a local copy, so that the compiler knows that no write to
// memory changes it.
template <PairMode Mode>
class PlaceFinder {
 public:
#if defined(__AVX512F__)
  static constexpr bool compares_edges = false, counts_edges = false;
#elif defined(__AVX2__)
  static constexpr bool compares_edges = true, counts_edges = true;
#else
  static constexpr bool compares_edges = true, counts_edges = false;
#endif
  using V = Lanes<float>;
  using Places = Lanes<int32_t>;

  // place, place_b: of each edge of both quantities, and of values above the last.
  PlaceFinder(const Bins& bins, const PairBins<Mode, float>& limits, const EvenEdges<float>& even, const int32_t* place,
              const int32_t* place_b)
      : bins_(bins),
        first_(limits.first()),
        second_(limits.second()),
        is_even_(even.is_even),
        errors_(limits.errors()),
        steps_(even, Mode == PairMode::across_along ? errors_.along : 0),
        has_slip_(Mode == PairMode::distance_cosine && (errors_.along > 0 || errors_.angle > 0)),
        place_(place),
        place_b_(place_b),
        slip_along_(errors_.along * steps_.per_bit),
        slip_angle_(errors_.angle * steps_.per_bit + static_cast<float>(steps_.tolerance + 2)),
        may_vanish_(!(first_.surely[std::max<int64_t>(bins.lo - 1, 0)] > PairBins<Mode, float>::vanishing)) {
    const int32_t tolerance = has_slip_ ? 0 : steps_.tolerance;
    per_step_ = V::Register{} + steps_.per_step;
    origin_ = V::Register{} + static_cast<float>(steps_.origin + tolerance / static_cast<double>(steps_.unit));
    lower_ = Places::Register{} + (steps_.lower + tolerance), upper_ = Places::Register{} + (steps_.upper + tolerance);
    whole_ = Places::Register{} + ((1 << steps_.digits) - 1), limit_ = Places::Register{} + 2 * tolerance;
#if defined(__AVX512F__)
    const float max_along = limits.farthest_along();
    float slip = 0;
    if (errors_.per_distance2 > 0)
      slip = (limits.farthest2() + max_along * max_along) * 2 * errors_.per_distance2 + errors_.across2;
    const float top = first_.possibly[std::min(bins.hi, first_.count - 1)];
    has_cells_ = cells_.set(first_, bins.lo, bins.hi, top, slip, place[1] - place[0], place[0]);
#endif
  }

  // Let only the edges of the first quantity from `lo` to before `hi` separate the pairs.
  void aim(int64_t lo, int64_t hi) {
    lo_ = lo, hi_ = hi;
#if defined(__AVX2__) && !defined(__AVX512F__)
    surely_ = _mm256_loadu_ps(first_.surely + lo);
    few_places_ = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(place_ + lo));
#endif
  }

  // The number of edges that separate pairs, if it is below `many_edges` and code exists for it; otherwise
  // `many_edges`, or `uneven` if edges of the second quantity are compared.
  int64_t edges() const {
    if (sighted && !is_even_) return uneven;
    return counts_edges ? std::min<int64_t>(hi_ - lo_, many_edges) : many_edges;
  }
  static constexpr int64_t many_edges = 4, uneven = 5;

  // Find the places of pairs with these first quantities and separations along the line of sight. Returns the undecided
  // pairs. own_sight: whether each pair has a separate line of sight.
  template <bool OwnSight, int64_t Edges>
  SomeLanes find(const V& first, const V& along, Places& place) const {
    V slip{};
    if (Mode == PairMode::across_along && OwnSight)
      slip = (first + along * along) * errors_.per_distance2 + V(errors_.across2);
    SomeLanes unsure = find_first<Edges>(first, slip, place);
    if (!sighted) return unsure;
    Places place_b;
    if (Mode == PairMode::across_along) {
      unsure = unsure | find_second<Edges>(along, [](float error, float) { return V(error); }, place_b);
    } else {
      const V inverse = inverse_root(first);
      const auto slip_b = [&](float error, float angle) { return sum_of_product(inverse, V(error), V(angle)); };
      unsure = unsure | find_second<Edges>(along * inverse, slip_b, place_b);
      if (may_vanish_) unsure = unsure | at_most(first, V(PairBins<Mode, float>::vanishing));
    }
    place = place + place_b;
    return unsure;
  }

 private:
  static constexpr bool sighted = Mode != PairMode::distance;

  // From a register, because the compiler repeats a number in each round of a loop instead of storing the result.
  template <typename N>
  static N all(const typename N::Register& each) {
    N out;
    N::each_register([&](int i) { out.part[i] = each; });
    return out;
  }

  template <int64_t Edges>
  SomeLanes find_first(const V& x, const V& slip, Places& place) const {
#if defined(__AVX512F__)
    if (has_cells_) return cells_.find(x, slip, place);
#elif defined(__AVX2__)
    if (Edges < many_edges || hi_ - lo_ < 8) return count_edges<Edges>(x, slip, place);
#endif
    return compare(x, first_, lo_, hi_, place_, slip, place);
  }

  // slip(along, angle): the errors of the numbers, if lengths and directions of the line of sight have these errors.
  template <int64_t Edges, typename Slip>
  SomeLanes find_second(const V& x, const Slip& slip, Places& place) const {
    if (Edges == uneven)
      return compare(x, second_, bins_.lo_b, bins_.hi_b, place_b_, slip(errors_.along, errors_.angle), place);
    return step(x, slip, place);
  }

#if defined(__AVX2__) && !defined(__AVX512F__)
  // The same as `compare` for at most 7 edges: the number of edges that do not contain a pair selects its place.
  template <int64_t Edges>
  SomeLanes count_edges(const V& x, const V& slip, Places& place) const {
    if (Edges == 0) {
      place = Places(place_[lo_]);
      return SomeLanes{};
    }
    const V low = x - slip, high = x + slip;
    Places edges{};
    const int64_t end = Edges < many_edges ? lo_ + Edges : hi_;
    for (int64_t edge = lo_; edge < end; ++edge) {
      const auto above = low > V(first_.possibly[edge]);
      V::each_register([&](int i) { edges.part[i] -= above.part[i]; });
    }
    V bound;
    V::each_register([&](int i) {
      bound.part[i] = (V::Register)_mm256_permutevar8x32_ps(surely_, (__m256i)edges.part[i]);
      place.part[i] = (Places::Register)_mm256_permutevar8x32_epi32(few_places_, (__m256i)edges.part[i]);
    });
    return above(high, bound);
  }
#endif

  // For each number, the entry of `places` of the first edge that contains it.
  static SomeLanes compare(const V& x, const EdgeBounds<float>& edges, int64_t lo, int64_t hi, const int32_t* places,
                           const V& slip, Places& place) {
    const float *surely = edges.surely, *possibly = edges.possibly;
    const V low = x - slip, high = x + slip;
    V bound(std::numeric_limits<float>::infinity());
    place = Places(places[hi]);
    for (int64_t edge = hi - 1; edge >= lo; --edge) {
      const auto above = low > V(possibly[edge]);
      bound = choose(above, bound, V(surely[edge]));
      const Places here(places[edge]);
      V::each_register([&](int i) { place.part[i] = above.part[i] ? place.part[i] : here.part[i]; });
    }
    return above(high, bound);
  }

  // The same for evenly spaced edges, plus `steps_.first`.
  template <typename Slip>
  SomeLanes step(const V& x, const Slip& slip, Places& place) const {
    const V steps = sum_of_product(x, all<V>(per_step_), all<V>(origin_));
    const Places lower = all<Places>(lower_), upper = all<Places>(upper_), whole = all<Places>(whole_);
    Places tolerance{}, limit = all<Places>(limit_), fraction;
    if (Mode == PairMode::distance_cosine && has_slip_) {
      tolerance = whole_part(minimum(slip(slip_along_, slip_angle_), V(slip_angle_ + steps_.unit)));
      limit = tolerance + tolerance;
    }
    V::each_register([&](int i) {
      auto bits = (Places::Register)steps.part[i];
      bits = bits < lower.part[i] ? lower.part[i] : bits;
      bits = bits > upper.part[i] ? upper.part[i] : bits;
      if (Mode == PairMode::distance_cosine) bits += tolerance.part[i];
      place.part[i] = bits >> steps_.digits;
      fraction.part[i] = bits & whole.part[i];
    });
    return below(fraction, limit);
  }

  const Bins bins_;
  const EdgeBounds<float> first_, second_;
  const bool is_even_;
  const PairErrors<float> errors_;
  const StepBits steps_;
  const bool has_slip_;  // whether cosines have errors in addition to the tolerance of the edges
  const int32_t *const place_, *const place_b_;
  const float slip_along_, slip_angle_;  // these errors in the bits of steps, with the tolerance
  // Whether pairs may be so close that squares have lost digits. In no bin are the pairs within the first edge.
  const bool may_vanish_;
  int64_t lo_, hi_;
  // Of steps. Without errors of cosines, the origin and the limits include the tolerance.
  V::Register per_step_, origin_;
  Places::Register lower_, upper_, whole_, limit_;
#if defined(__AVX2__) && !defined(__AVX512F__)
  __m256 surely_;
  __m256i few_places_;
#endif
#if defined(__AVX512F__)
  EdgeCells cells_;
  bool has_cells_;
#endif
};

}  // namespace jztree
