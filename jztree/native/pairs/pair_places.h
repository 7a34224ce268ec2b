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
#include "pair_squares.h"
#include "sph/kernel_lanes.h"

namespace jztree {

// Edges that are evenly spaced, up to the rounding of T.
template <typename T>
struct EvenEdges {
  T start = 0, per_step = 0;
  T tolerance = 0;  // steps; a value farther than this times (1 + its place) from an edge is surely on its apparent
                    // side
                    // steps; all edges are above this
  T least = -1;     // steps; there are no edges up to this
  T most = 0;       // steps; all edges are below this
  bool even = false;

  explicit EvenEdges(const EdgeTable<T, EqualCells>& edges) {
    // An edge that contains no pairs is stored as 0. An edge that contains every pair is left out.
    const int64_t zero = edges.count > 0 && edges.possibly[0] < 0;
    int64_t last = edges.count - 1;
    if (last >= 0 && !(edges.possibly[static_cast<size_t>(last)] < std::numeric_limits<T>::max())) --last;
    if (last <= 0) return;
    auto middle = [&](int64_t i) {
      size_t at = static_cast<size_t>(i);
      return i < zero ? 0. : (static_cast<double>(edges.surely[at]) + static_cast<double>(edges.possibly[at])) / 2;
    };
    start = static_cast<T>(middle(0));
    per_step = static_cast<T>(static_cast<double>(last) / (middle(last) - middle(0)));
    double worst = 0;
    for (int64_t i = zero; i <= last; ++i)
      for (T bound : {edges.surely[static_cast<size_t>(i)], edges.possibly[static_cast<size_t>(i)]})
        worst = std::max(worst, error(static_cast<double>(bound), i) / static_cast<double>(i + 1));
    if (zero) least = T{0.5};
    most = static_cast<T>(edges.count - 1) + T{0.5};
    if (last < edges.count - 1) most -= 1;
    // A little larger, because it is multiplied by places instead of edge numbers.
    tolerance = static_cast<T>(1.25 * worst);
    even = worst * static_cast<double>(edges.count) < 0.125 && per_step >= std::numeric_limits<T>::min() &&
           per_step <= std::numeric_limits<T>::max();
  }

 private:
  // The largest apparent distance of a bound from the i-th edge, in steps.
  double error(double bound, int64_t i) const {
    double from = static_cast<double>(start), steps = static_cast<double>(per_step);
    double rounding = static_cast<double>(i + 1) + std::fabs(from * steps);
    return std::fabs((bound - from) * steps - static_cast<double>(i)) +
           4 * static_cast<double>(std::numeric_limits<T>::epsilon()) * rounding;
  }
};

template <typename T>
struct WholeLanes;
template <>
struct WholeLanes<float> {
  typedef int32_t Register __attribute__((vector_size(register_bytes)));
};
template <>
struct WholeLanes<double> {
  typedef int32_t Register __attribute__((vector_size(register_bytes / 2)));
};

template <PairMode Mode, int D, typename T>
class PairPlaces {
 public:
  using V = Lanes<T>;

  explicit PairPlaces(const PairProblem<D, T>& problem)
      : first_(problem.first),
        second_(problem.second),
        even_(problem.second),
        slip_(static_cast<T>(problem.rule.cosine_slip)),
        first_place_(multiples(problem.first.count, problem.second.count + 1)),
        second_place_(multiples(problem.second.count, 1)),
        fits_((problem.first.count + 1) * (problem.second.count + 1) < int64_t{1} << 20),
        firsts_(static_cast<size_t>((problem.most + 1) * lanes)),
        seconds_(firsts_.size()),
        places_(firsts_.size()) {}

  // Whether vectors find the places of pairs in these bins faster than a lookup of every pair.
  bool worth(const Bins& bins) const {
    return fits_ && bins.hi - bins.lo <= few_edges && (!sighted || even_.even || bins.hi_b - bins.lo_b <= few_edges);
  }

  // Set the possible bins of the next pairs.
  void begin(const Bins& bins) { bins_ = bins; }

  // The destination of pairs. Loops use a local copy, so that the compiler knows that no write to memory changes it.
  struct Buffer {
    T *firsts, *seconds;
    int64_t end;

    // Append the chosen pairs: their first quantities, and their separations along the line of sight.
    void put(const V& first, const V& along, uint32_t chosen) {
      if (sighted) keep_lanes<T>(along, chosen, seconds + end);
      end += keep_lanes<T>(first, chosen, firsts + end);
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
  // Above this number, edges are not compared one by one.
  static constexpr int64_t few_edges = 32;

  // Write the places of pairs, and return the undecided ones.
  uint32_t find(const V& first, const V& along, int32_t* places) const {
    V place, second = along, slip{};
    uint32_t unsure = compare(first, first_, bins_.lo, bins_.hi, first_place_.data(), place);
    if (!sighted) {
      write(place, V{}, places);
      return unsure;
    }
    if (Mode == PairMode::distance_cosine) {
      V root = square_root(first);
      second = along / root;
      if (slip_ > 0) slip = V(slip_) / root;
      unsure |= lanes_at_most(first, V(PairBins<Mode, D, T>::vanishing));
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
  template <typename Edges>
  static uint32_t compare(const V& x, const Edges& edges, int64_t lo, int64_t hi, const T* places, V& place,
                          const V& slip = V{}) {
    const T *surely = edges.surely.data(), *possibly = edges.possibly.data();
    const V low = x - slip, high = x + slip;
    V bound(std::numeric_limits<T>::infinity());
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
    constexpr T whole = std::is_same<T, float>::value ? static_cast<T>(0x1.8p23) : static_cast<T>(0x1.8p52);
    V steps = smaller<V>((x - V(even_.start)) * even_.per_step, V(even_.most));
    V nearest = (steps + V(whole)) - V(whole), beyond = steps + V(T{1});
    V off = larger<V>(steps - nearest, nearest - steps), tolerance = beyond * even_.tolerance;
    if (Mode == PairMode::distance_cosine) tolerance = tolerance + slip * even_.per_step;
    place = larger<V>(beyond, V{});
    return lanes_at_most(off, tolerance) & ~lanes_at_most(steps, V(even_.least));
  }

  // The integer parts of the sums a + b.
  static void write(const V& a, const V& b, int32_t* places) {
    using Whole = typename WholeLanes<T>::Register;
    for (int i = 0; i < V::registers; ++i) {
      Whole sum = __builtin_convertvector(a.part[i], Whole) + __builtin_convertvector(b.part[i], Whole);
      std::memcpy(places + i * V::width, &sum, sizeof(sum));
    }
  }

  static std::vector<T> multiples(int64_t edges, int64_t step) {
    std::vector<T> found;
    for (int64_t edge = 0; edge <= edges; ++edge) found.push_back(static_cast<T>(edge * step));
    return found;
  }

  static constexpr uint32_t all_lanes = (uint32_t{1} << lanes) - 1;

  const EdgeTable<T, OctaveCells>& first_;
  const EdgeTable<T, EqualCells>& second_;
  const EvenEdges<T> even_;
  const T slip_;
  const std::vector<T> first_place_, second_place_;  // one for each edge, and one for values above the last
  const bool fits_;
  std::vector<T> firsts_, seconds_;
  std::vector<int32_t> places_;
  Bins bins_{};
};

}  // namespace jztree
