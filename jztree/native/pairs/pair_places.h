// Finds the bins of pairs by vectors: for pairs with two quantities, or for distances with weights or regions.
//
// Pairs are gathered in a small buffer. The first quantity is compared with the few edges that can separate the pairs
// of two leaves. Edges of the second quantity are usually evenly spaced, so a multiplication gives the bin; other edges
// are also compared. Pairs so close to an edge that float64 must decide are only detected here.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/cpu/lanes.h"
#include "pair_bins.h"
#include "pair_leaf_edges.h"
#include "pair_squares.h"
#include "sph/kernel_lanes.h"

namespace jztree {

template <PairMode Mode>
class PairPlaces {
 public:
  using V = Lanes<float>;

  // The numbers of edges of both quantities, the largest number of particles in a leaf, and a power of two that
  // multiplies places.
  PairPlaces(int64_t edges, int64_t edges_b, int64_t most, int64_t factor)
      : first_place_(multiples(edges, edges_b + 1)),
        second_place_(multiples(edges_b, 1)),
        shift_(__builtin_ctzll(static_cast<unsigned long long>(factor))),
        fits_((edges + 1) * (edges_b + 1) < int64_t{1} << 20),
        firsts_(static_cast<size_t>((most + 1) * lanes)),
        seconds_(firsts_.size()),
        places_(firsts_.size()) {}

  // Whether vectors find the places of pairs in these bins faster than a lookup of every pair.
  bool worth(const Bins& bins, const EvenEdges<float>& even) const {
    return fits_ && bins.hi - bins.lo <= few_edges && (!sighted || even.even || bins.hi_b - bins.lo_b <= few_edges);
  }

  // Set the possible bins of the next pairs.
  void begin(const Bins& bins, const PairBins<Mode, float>& limits, const EvenEdges<float>& even) {
    bins_ = bins, even_ = even, errors_ = limits.errors();
    first_ = limits.first(), second_ = limits.second();
  }

  // The destination of pairs. Loops use a local copy, so that the compiler knows that no write to memory changes it.
  struct Buffer {
    float *firsts, *seconds;
    int64_t end;

    // Append the chosen pairs: their first quantities, and their separations along the line of sight.
    void put(const V& first, const V& along, uint32_t chosen) {
      if (sighted) keep_lanes(along, chosen, seconds + end);
      end += keep_lanes(first, chosen, firsts + end);
    }
  };
  Buffer buffer() { return {firsts_.data(), seconds_.data(), 0}; }

  // Find the places of the pairs in the buffer before `end`. For each undecided pair, call decide(at, first, along);
  // its place is in no bin.
  template <typename Decide>
  __attribute__((flatten)) const int32_t* find(int64_t end, const Decide& decide) {
    for (int64_t at = 0; at < end; at += lanes) {
      V first, along;
      load(firsts_.data() + at, first);
      if (sighted) load(seconds_.data() + at, along);
      uint32_t unsure = find(first, along, places_.data() + at);
      if (end - at < lanes) unsure &= (uint32_t{1} << (end - at)) - 1;
      for (; unsure != 0; unsure &= unsure - 1) {
        size_t one = static_cast<size_t>(at + __builtin_ctz(unsure));
        places_[one] = 0;
        decide(static_cast<int64_t>(one), firsts_[one], seconds_[one]);
      }
    }
    return places_.data();
  }

 private:
  static constexpr bool sighted = Mode != PairMode::distance;

  // Write the places of pairs, and return the undecided ones.
  uint32_t find(const V& first, const V& along, int32_t* places) const {
    V place, second = along, slip{}, slip_across{};
    if (errors_.per_distance2 > 0) slip_across = (first + along * along) * errors_.per_distance2 + V(errors_.across2);
    uint32_t unsure = compare(first, first_, bins_.lo, bins_.hi, first_place_.data(), place, slip_across);
    if (!sighted) {
      write(place, V{}, places);
      return unsure;
    }
    if (Mode == PairMode::across_along) slip = V(errors_.along);
    if (Mode == PairMode::distance_cosine) {
      const V inverse = inverse_root(first);
      second = along * inverse;
      if (errors_.along > 0) slip = inverse * errors_.along + V(errors_.angle);
      unsure |= lanes_at_most(first, V(PairBins<Mode, float>::vanishing));
    }
    V place_b;
    if (even_.even) {
      unsure |= step(second, slip, place_b);
    } else {
      unsure |= compare(second, second_, bins_.lo_b, bins_.hi_b, second_place_.data(), place_b, slip);
    }
    write(place, place_b, places);
    return unsure;
  }

  // For each number, the entry of `places` of the first edge that contains it.
  static uint32_t compare(const V& x, const EdgeBounds<float>& edges, int64_t lo, int64_t hi, const float* places,
                          V& place, const V& slip) {
    const float *surely = edges.surely, *possibly = edges.possibly;
    const V low = x - slip, high = x + slip;
    V bound(std::numeric_limits<float>::infinity());
    place = V(places[hi]);
    for (int64_t edge = hi - 1; edge >= lo; --edge) {
      const auto beyond = low > V(possibly[edge]);
      place = choose(beyond, place, V(places[edge]));
      bound = choose(beyond, bound, V(surely[edge]));
    }
    return ~lanes_at_most(high, bound) & all_lanes;
  }

  // The same for evenly spaced edges.
  uint32_t step(const V& x, const V& slip, V& place) const {
    constexpr float whole = 0x1.8p23f;
    V steps = smaller<V>((x - V(even_.start)) * even_.per_step, V(even_.most));
    V nearest = (steps + V(whole)) - V(whole), beyond = steps + V(1.f);
    V off = larger<V>(steps - nearest, nearest - steps), tolerance = beyond * even_.tolerance + slip * even_.per_step;
    place = larger<V>(beyond, V{});
    return lanes_at_most(off, tolerance) & ~lanes_at_most(steps + tolerance, V(even_.least));
  }

  // The sums of the integer parts of a and b, times the factor.
  void write(const V& a, const V& b, int32_t* places) const {
    typedef int32_t Whole __attribute__((vector_size(register_bytes)));
    for (int i = 0; i < V::registers; ++i) {
      Whole sum = (__builtin_convertvector(a.part[i], Whole) + __builtin_convertvector(b.part[i], Whole)) << shift_;
      std::memcpy(places + i * V::width, &sum, sizeof(sum));
    }
  }

  static std::vector<float> multiples(int64_t edges, int64_t step) {
    std::vector<float> found;
    for (int64_t edge = 0; edge <= edges; ++edge) found.push_back(static_cast<float>(edge * step));
    return found;
  }

  static constexpr uint32_t all_lanes = (uint32_t{1} << lanes) - 1;

  const std::vector<float> first_place_, second_place_;  // one for each edge, and one for values above the last
  const int shift_;
  const bool fits_;
  std::vector<float> firsts_, seconds_;
  std::vector<int32_t> places_;
  Bins bins_{};
  EdgeBounds<float> first_, second_;
  EvenEdges<float> even_;
  PairErrors<float> errors_;
};

}  // namespace jztree
