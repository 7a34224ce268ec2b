// Defines the bin of a pair of particles: by its distance; by its separations across and along a line of sight (rp and
// pi); or by its distance and the cosine of the angle to the line of sight (s and mu). The line of sight is an axis, or
// the direction from the origin to the middle between the two. If the two are opposite to each other, their whole
// distance is across.
//
// Edges ascend, and a pair belongs to the first edge that contains it: bin i holds the pairs within edge i + 1 but not
// within edge i. All decisions are as in float64 from the unchanged input positions: rp and s by
// common/distance_rule.h; pi by |z| <= edge; mu by z^2 <= edge^2 s^2. In the precision of the positions, an edge has a
// lower and an upper bound, and only pairs between the two are tested again.
//
// A bin of rp, pi or mu that begins at 0 also holds the value 0, but pairs at distance 0 are in no bin of any mode. So
// no pair is within an edge 0 of pi or mu, and only pairs at distance 0 are within an edge 0 of r, s or rp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "common/distance_rule.h"

namespace jztree {

enum class PairMode : int { distance = 0, across_along = 1, distance_cosine = 2 };

// The separations of a pair across and along its own line of sight, in float64 from the input positions, times a
// factor.
struct Sighted {
  double distance2, across2, along, factor;
};

// An edge in the form used by comparisons. Quantities are squares of scaled lengths, and scaled lengths along the line
// of sight or cosines.
template <typename T>
struct PairEdge {
  T surely, possibly;  // up to `surely`: within; above `possibly`: not within
  double exact;        // for comparisons in float64: the edge itself, or the square of a cosine

  // An edge that contains nothing.
  JZTREE_BOTH static PairEdge none() { return {T{-1}, T{-1}, -1.}; }
};

// Above this squared distance, pairs with separate lines of sight are in no bin that ends with these edges.
template <PairMode Mode, typename T>
JZTREE_BOTH inline T farthest_distance2(T first, T second) {
  if (Mode != PairMode::across_along) return first;
  return smaller<T>((first + second * second) * above_one<T>, std::numeric_limits<T>::max());
}

template <int D, typename T>
struct PairRule {
  static constexpr double epsilon = std::numeric_limits<T>::epsilon();

  DistanceRule<D, T> distances;
  PairMode mode;
  int axis;            // of input positions; D: to the middle of each pair
  double cosine_slip;  // error of cosines due to rounded positions, times the scaled distance

  JZTREE_BOTH PairRule(const DistanceRule<D, T>& rule, PairMode pair_mode, int los)
      : distances(rule), mode(pair_mode), axis(los), cosine_slip(8 * rule.rounding) {}

  JZTREE_BOTH bool to_middle() const { return axis == D; }

  JZTREE_BOTH PairEdge<T> first_edge(double length) const {
    Within<T> bound = distances.within(length);
    constexpr T largest = std::numeric_limits<T>::max(), nowhere = -std::numeric_limits<T>::infinity();
    // Only padding is infinitely far away.
    return {std::nextafter(smaller<T>(bound.surely2, largest), nowhere), smaller<T>(bound.possibly2, largest), length};
  }

  // Of pi or mu. The value 0 is in the bin that begins there.
  JZTREE_BOTH PairEdge<T> second_edge(double edge) const {
    constexpr T largest = std::numeric_limits<T>::max();
    if (edge <= 0) return PairEdge<T>::none();
    if (mode == PairMode::across_along) {
      double length = smaller<double>(edge * distances.scale, largest);
      // A coordinate below the smallest normal number may be 0 after scaling.
      constexpr double vanishing = std::numeric_limits<T>::min();
      double surely = length * (1 - 16 * epsilon) - distances.rounding - vanishing;
      double possibly = length * (1 + 16 * epsilon) + distances.rounding + vanishing;
      return {static_cast<T>(surely), static_cast<T>(smaller<double>(possibly, largest)), edge};
    }
    if (edge >= 1) return {largest, largest, std::numeric_limits<double>::infinity()};
    return {static_cast<T>(edge * (1 - 64 * epsilon)), static_cast<T>(edge * (1 + 64 * epsilon)), edge * edge};
  }

  // The error of the second quantity in addition to the tolerance of the edges.
  JZTREE_BOTH T slip(T distance2) const {
    if (mode != PairMode::distance_cosine || cosine_slip == 0) return 0;
    return static_cast<T>(cosine_slip / std::sqrt(static_cast<double>(distance2)));
  }

  // With the line of sight to their middle. A power of two keeps products in range. So products of float32 positions
  // are exact, and particles on the same line of sight are at distance 0 across it.
  JZTREE_BOTH Sighted sighted(const T* a, const T* b) const {
    double displacement[D], middle[D], longest = 0;
    const Squared pair = squared(a, b, displacement);
    for (int d = 0; d < D; ++d) {
      middle[d] = static_cast<double>(a[d]) / 2 + static_cast<double>(b[d]) / 2;
      longest = larger<double>(longest, std::fabs(middle[d]));
    }
    if (longest == 0) return {pair.distance2, pair.distance2, 0, pair.factor};
    int exponent;
    std::frexp(longest, &exponent);
    double square = 0, along = 0, across2 = 0;
    for (int d = 0; d < D; ++d) {
      middle[d] = std::ldexp(middle[d], -exponent);
      square += middle[d] * middle[d];
      along += displacement[d] * middle[d];
    }
    for (int d = 0; d < D; ++d)
      for (int e = d + 1; e < D; ++e) {
        double part = displacement[d] * middle[e] - displacement[e] * middle[d];
        across2 += part * part;
      }
    return {pair.distance2, across2 / square, std::fabs(along) / std::sqrt(square), pair.factor};
  }

  // Both quantities of such a pair, in the form of the edges.
  JZTREE_BOTH void quantities(const Sighted& pair, T* first, T* second) const {
    const double scaled = distances.scale / pair.factor, square = first2(pair) * scaled * scaled;
    const bool across = mode == PairMode::across_along;
    constexpr double largest = std::numeric_limits<T>::max();
    *first = static_cast<T>(smaller<double>(square, largest));
    *second =
        static_cast<T>(across ? smaller<double>(pair.along * scaled, largest) : pair.along / std::sqrt(pair.distance2));
  }

  // Whether such a pair is within the edges.
  JZTREE_BOTH bool within_first(const Sighted& pair, double exact) const {
    const double length = exact * pair.factor;
    return (exact > 0 ? first2(pair) : pair.distance2) <= length * length;
  }
  JZTREE_BOTH bool within_second(const Sighted& pair, double exact) const {
    if (mode == PairMode::across_along) return pair.along <= exact * pair.factor;
    return pair.along * pair.along <= exact * pair.distance2;
  }

  // The first quantity of the particles at input positions a and b.
  JZTREE_BOTH double separation(const T* a, const T* b) const {
    if (to_middle()) {
      const Sighted pair = sighted(a, b);
      return std::sqrt(first2(pair)) / pair.factor;
    }
    double displacement[D], square = 0;
    const Squared pair = squared(a, b, displacement);
    const int left_out = mode == PairMode::across_along ? axis : D;
    for (int d = 0; d < D; ++d) square += d == left_out ? 0 : displacement[d] * displacement[d];
    return std::sqrt(square) / pair.factor;
  }

  // Whether the particles at input positions a and b are within the edge; the line of sight is an axis.
  JZTREE_BOTH bool within_first(const T* a, const T* b, double exact) const {
    const int left_out = mode == PairMode::across_along && exact > 0 ? axis : D;
    return ExactRadius(exact).reaches(D,
                                      [&](int d) { return d == left_out ? 0 : distances.displacement(a[d], b[d], d); });
  }
  JZTREE_BOTH bool within_second(const T* a, const T* b, double exact) const {
    if (mode == PairMode::across_along) return std::fabs(distances.displacement(a[axis], b[axis], axis)) <= exact;
    double displacement[D];
    const Squared pair = squared(a, b, displacement);
    return displacement[axis] * displacement[axis] <= exact * pair.distance2;
  }

 private:
  struct Squared {
    double distance2, factor;
  };

  // The separation of a pair along each dimension, from the input positions, and the square of its distance; all times
  // a factor. This is the factor of the rule. If squares would be so small that they lose digits, it is a factor for
  // this pair.
  JZTREE_BOTH Squared squared(const T* a, const T* b, double* displacement) const {
    double longest = 0;
    for (int d = 0; d < D; ++d) {
      displacement[d] = distances.displacement(a[d], b[d], d);
      longest = larger<double>(longest, std::fabs(displacement[d]));
    }
    const double factor = longest * distances.factor < 0x1p-300 ? ExactRadius(longest).factor : distances.factor;
    double distance2 = 0;
    for (int d = 0; d < D; ++d) {
      displacement[d] *= factor;
      distance2 += displacement[d] * displacement[d];
    }
    return {distance2, factor};
  }

  JZTREE_BOTH double first2(const Sighted& pair) const {
    return mode == PairMode::across_along ? pair.across2 : pair.distance2;
  }
};

}  // namespace jztree
