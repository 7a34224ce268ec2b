// In which bin a pair of particles is: of its distance, of its distances across and along a line of sight that is an
// axis (rp and pi), or of its distance and the cosine of the angle to that axis (s and mu).
//
// Edges ascend, and a pair belongs to the first one that it is within: bin i holds what is within edge i + 1 and not
// within edge i. All is decided as in float64 from the positions as given: rp and s by common/distance_rule.h; pi by
// |z| <= edge; mu by z^2 <= edge^2 s^2. In the positions' own precision there are bounds on both sides of an edge, and
// only pairs between these are looked at again.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "common/distance_rule.h"

namespace jztree {

enum class PairMode : int { distance = 0, across_along = 1, distance_cosine = 2 };

// An edge as it is compared with. Quantities are squares of scaled lengths, and scaled lengths along the line of sight
// or cosines.
template <typename T>
struct PairEdge {
  T surely, possibly;  // at most the one: within; above the other: not
  double exact;        // to compare with what is computed in float64

  // What nothing is within.
  JZTREE_BOTH static PairEdge none() { return {T{-1}, T{-1}, -1.}; }
};

template <int D, typename T>
struct PairRule {
  static constexpr double epsilon = std::numeric_limits<T>::epsilon();

  DistanceRule<D, T> distances;
  PairMode mode;
  int axis;            // of positions as given
  double cosine_slip;  // how much cosines are off by rounded positions, times the scaled distance

  JZTREE_BOTH PairRule(const DistanceRule<D, T>& rule, PairMode pair_mode, int los)
      : distances(rule), mode(pair_mode), axis(los), cosine_slip(8 * rule.rounding) {}

  JZTREE_BOTH PairEdge<T> first_edge(double length) const {
    Within<T> bound = distances.within(length);
    constexpr T most = std::numeric_limits<T>::max(), nowhere = -std::numeric_limits<T>::infinity();
    // Nothing is as far as infinity but what stands for no particle.
    return {std::nextafter(smaller<T>(bound.surely2, most), nowhere), smaller<T>(bound.possibly2, most), bound.radius2};
  }

  // Of pi or mu. What is 0 is in the bin that begins there.
  JZTREE_BOTH PairEdge<T> second_edge(double edge) const {
    constexpr T most = std::numeric_limits<T>::max();
    if (edge <= 0) return PairEdge<T>::none();
    if (mode == PairMode::across_along) {
      double length = smaller<double>(edge * distances.scale, most);
      double surely = length * (1 - 16 * epsilon) - distances.rounding;
      double possibly = length * (1 + 16 * epsilon) + distances.rounding + std::numeric_limits<T>::min();
      return {static_cast<T>(surely), static_cast<T>(smaller<double>(possibly, most)), edge * distances.factor};
    }
    if (edge >= 1) return {most, most, std::numeric_limits<double>::infinity()};
    return {static_cast<T>(edge * (1 - 64 * epsilon)), static_cast<T>(edge * (1 + 64 * epsilon)), edge * edge};
  }

  // How far the second quantity may be off beside what edges allow for.
  JZTREE_BOTH T slip(T distance2) const {
    if (mode != PairMode::distance_cosine || cosine_slip == 0) return 0;
    return static_cast<T>(cosine_slip / std::sqrt(static_cast<double>(distance2)));
  }

  // Whether the particles at a and b, as given, are within the edge.
  JZTREE_BOTH bool within_first(const T* a, const T* b, double exact) const {
    double sum = 0;
    for (int d = 0; d < D; ++d) {
      if (mode == PairMode::across_along && d == axis) continue;
      double apart = distances.difference(a[d], b[d], d);
      sum += apart * apart;
    }
    return sum <= exact;
  }
  JZTREE_BOTH bool within_second(const T* a, const T* b, double exact) const {
    double along = std::fabs(distances.difference(a[axis], b[axis], axis));
    return mode == PairMode::across_along ? along <= exact : along * along <= exact * distances.distance2(a, b);
  }
};

}  // namespace jztree
