// Decides whether two particles are within a radius of each other: their distance must be at most the radius. The
// distance is in float64, from the unchanged input positions, to the nearest image. Searches compute distances in the
// precision of the positions with bounds on their error, and test only pairs between these bounds again in float64. So
// counts and links do not depend on other particles.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "common/geometry.h"
#include "common/periodic.h"
#include "common/portable.h"
#include "common/scale.h"

namespace jztree {

// A radius, and the factor for comparing distances with it in float64. The factor is a power of two. With it, the
// square of any length close to the radius neither overflows nor underflows. So the result depends only on the two
// particles.
struct ExactRadius {
  double radius2 = -1, factor = 1;

  JZTREE_BOTH ExactRadius() {}

  // Negative: contains nothing; infinite: contains everything.
  JZTREE_BOTH explicit ExactRadius(double radius) {
    if (!(radius >= 0)) return;
    if (radius > 0 && radius < std::numeric_limits<double>::infinity()) {
      int exponent;
      std::frexp(radius, &exponent);
      factor = std::ldexp(1., exponent < -1000 ? 1000 : exponent > 1000 ? -1000 : -exponent);
    } else if (radius == 0) {
      factor = 0x1p1000;  // no length squared with this factor is 0
    }
    radius2 = (radius * factor) * (radius * factor);
  }

  // Whether lengths apart(d) along `dims` dimensions make a distance of at most the radius.
  template <typename Apart>
  JZTREE_BOTH bool reaches(int dims, const Apart& displacement) const {
    double sum = 0;
    for (int d = 0; d < dims; ++d) {
      double length = displacement(d) * factor;
      sum += length * length;
    }
    return sum <= radius2;
  }
};

// A radius in the form used by comparisons.
template <typename T>
struct Within {
  T surely2 = -1, possibly2 = -1;  // scaled squared distances: below `surely2` within, above `possibly2` not within
  ExactRadius exact{};             // decides between the two
};

template <int D, typename T>
struct DistanceRule {
  bool exact_zero;  // staged positions equal the input, so equal ones are at distance 0
  double factor;    // a power of two for squares in float64: 1 for float32, whose squares are in range
  double scale;     // of staged positions
  double rounding;  // of staged distances, independent of their size
  double period[D];

  // wrapped: whether any particle was outside its periodic box, so that its staged position is rounded to the box's
  // precision. kept: whether scaling has kept all digits of every coordinate.
  JZTREE_BOTH DistanceRule(bool wrapped, bool kept, const Scale<D, T>& scaled)
      : exact_zero(!wrapped && kept),
        factor(std::is_same<T, double>::value ? static_cast<double>(scaled.factor) : 1.),
        scale(static_cast<double>(scaled.factor)),
        rounding(0) {
    constexpr double epsilon = std::numeric_limits<T>::epsilon();
    for (int d = 0; d < D; ++d) {
      period[d] = scaled.raw_period[d];
      if (period[d] > 0 && wrapped) rounding += 4 * epsilon * static_cast<double>(scaled.period[d]);
    }
  }

  // The form of a radius that is at least 0. Everything is within an infinite radius.
  JZTREE_BOTH Within<T> within(double radius) const {
    constexpr double epsilon = std::numeric_limits<T>::epsilon();
    double length = radius * scale;
    double surely = std::max(0., length * (1 - 16 * epsilon) - rounding);
    double possibly = length * (1 + 16 * epsilon) + rounding;
    // Each square that underflows is off by less than the smallest normal number.
    constexpr T vanishing = D * std::numeric_limits<T>::min();
    return {static_cast<T>(surely * surely) * below_one<T> - vanishing,
            static_cast<T>(possibly * possibly) * above_one<T> + vanishing, ExactRadius(radius)};
  }

  // The squared distance of the particles at input positions a and b, in float64, times the square of the factor.
  JZTREE_BOTH double distance2(const T* a, const T* b) const {
    double sum = 0;
    for (int d = 0; d < D; ++d) {
      double length = displacement(a[d], b[d], d) * factor;
      sum += length * length;
    }
    return sum;
  }

  // The separation of particles at this squared distance. The factor is a power of two.
  JZTREE_BOTH T length(double distance2) const { return static_cast<T>(std::sqrt(distance2) * (1 / factor)); }

  // The separation of two particles along one dimension, from the input positions, in float64.
  JZTREE_BOTH double displacement(T a, T b, int d) const {
    return nearest_difference(static_cast<double>(a), static_cast<double>(b), period[d]);
  }

  // Whether the particles at input positions a and b are within the radius, if their scaled squared distance is from
  // surely2 to possibly2. For other pairs the result is meaningless: positions far outside a periodic box have lost
  // their exact place in it.
  JZTREE_BOTH bool is_within_exactly(const T* a, const T* b, const ExactRadius& radius) const {
    return radius.reaches(D, [&](int d) { return displacement(a[d], b[d], d); });
  }

  // Whether all pairs of particles of two boxes are surely within a radius; see Within for surely2. If so, it also
  // holds for boxes inside them: every step is monotonic, including rounding.
  JZTREE_BOTH bool all_within(const T* alow, const T* ahigh, const T* blow, const T* bhigh, const T* scaled_period,
                              T surely2) const {
    T sum = 0, reach_sum = 0;
    for (int d = 0; d < D; ++d) {
      T reach = interval_reach(alow[d], ahigh[d], blow[d], bhigh[d], scaled_period[d]);
      sum += reach * reach;
      reach_sum += reach;
    }
    return sum * above_one<T> < surely2 || (exact_zero && reach_sum == 0);
  }
};

// For radii that are computed in the precision of staged positions, in scaled units, with an error of a few units in
// the last place: an upper limit of the squared distances within a radius. V: T, or a vector of T.
template <int D, typename T, typename V>
JZTREE_BOTH inline V possibly_within2(const V& radius, const DistanceRule<D, T>& rule) {
  V reach = radius * V(1 + 64 * std::numeric_limits<T>::epsilon()) + V(static_cast<T>(rule.rounding));
  return reach * reach + V(D * std::numeric_limits<T>::min());
}

// The same: smaller squared distances are surely within the radius. Negative: no distance is.
template <int D, typename T>
JZTREE_BOTH inline T surely_within2(T radius, const DistanceRule<D, T>& rule) {
  T surely = radius * (1 - 64 * std::numeric_limits<T>::epsilon()) - static_cast<T>(rule.rounding);
  return larger<T>(surely, 0) * surely - D * std::numeric_limits<T>::min();
}

// The rule for distances in T between positions that were wrapped in From, which may be narrower.
template <typename From, int D, typename T>
JZTREE_BOTH DistanceRule<D, T> rule_of_wrapped(DistanceRule<D, T> rule) {
  constexpr double epsilon = std::numeric_limits<T>::epsilon(), given = std::numeric_limits<From>::epsilon();
  rule.rounding *= given / epsilon;
  return rule;
}

}  // namespace jztree
