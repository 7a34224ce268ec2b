// When two particles are within a radius of each other: if their distance in float64, from the positions as given and
// to the nearest image, is at most the radius. Distances are computed in the positions' own precision with bounds on
// their error, and only pairs within these bounds are looked at again in float64. So what is counted or linked is the
// same whatever is around it.
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

// A radius, and with what factor to compare distances with it in float64: a power of two with which the squares of all
// lengths that are nearly as long neither overflow nor vanish. So what is within depends on nothing but the two
// particles.
struct ExactRadius {
  double radius2 = -1, factor = 1;

  JZTREE_BOTH ExactRadius() {}

  // Negative: nothing is within; infinite: everything.
  JZTREE_BOTH explicit ExactRadius(double radius) {
    if (!(radius >= 0)) return;
    if (radius > 0 && radius < std::numeric_limits<double>::infinity()) {
      int exponent;
      std::frexp(radius, &exponent);
      factor = std::ldexp(1., exponent < -1000 ? 1000 : exponent > 1000 ? -1000 : -exponent);
    } else if (radius == 0) {
      factor = 0x1p1000;  // with which the square of no length is 0
    }
    radius2 = (radius * factor) * (radius * factor);
  }

  // Whether lengths along so many dimensions, apart(d), make a distance of at most the radius.
  template <typename Apart>
  JZTREE_BOTH bool reaches(int dims, const Apart& apart) const {
    double sum = 0;
    for (int d = 0; d < dims; ++d) {
      double length = apart(d) * factor;
      sum += length * length;
    }
    return sum <= radius2;
  }
};

// A radius as it is compared with.
template <typename T>
struct Within {
  T surely2 = -1, possibly2 = -1;  // scaled squared distances: below the one within, above the other not
  ExactRadius exact{};             // what is in between
};

template <int D, typename T>
struct DistanceRule {
  bool exact_zero;  // staged positions are the given ones, so equal ones are at distance 0
  double factor;    // a power of two for what is squared in float64: 1 for float32, whose squares are in range
  double scale;     // of staged positions
  double rounding;  // of staged distances, whatever their size
  double period[D];

  // wrapped: whether any particle was outside its periodic box, so that its staged position is rounded to the box's
  // precision. kept: whether no coordinate has lost digits when it was scaled.
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

  // Of a radius of at least 0; infinite: everything is within.
  JZTREE_BOTH Within<T> within(double radius) const {
    constexpr double epsilon = std::numeric_limits<T>::epsilon();
    double length = radius * scale;
    double surely = std::max(0., length * (1 - 16 * epsilon) - rounding);
    double possibly = length * (1 + 16 * epsilon) + rounding;
    // Squares that vanish are off by less than the smallest normal number each.
    constexpr T vanishing = D * std::numeric_limits<T>::min();
    return {static_cast<T>(surely * surely) * below_one<T> - vanishing,
            static_cast<T>(possibly * possibly) * above_one<T> + vanishing, ExactRadius(radius)};
  }

  // The squared distance of the particles at a and b, as given, in float64; times the square of the factor.
  JZTREE_BOTH double distance2(const T* a, const T* b) const {
    double sum = 0;
    for (int d = 0; d < D; ++d) {
      double length = apart(a[d], b[d], d) * factor;
      sum += length * length;
    }
    return sum;
  }

  // How far particles at such a distance are apart. The factor is a power of two.
  JZTREE_BOTH T length(double distance2) const { return static_cast<T>(std::sqrt(distance2) * (1 / factor)); }

  // How far two particles are apart along one dimension, as given, in float64.
  JZTREE_BOTH double apart(T a, T b, int d) const {
    return nearest_difference(static_cast<double>(a), static_cast<double>(b), period[d]);
  }

  // Whether a and b, as given, are within the radius, if their scaled squared distance is from surely2 to possibly2; of
  // others it knows nothing, as positions far outside of a periodic box have lost where in it they are.
  JZTREE_BOTH bool is_within_exactly(const T* a, const T* b, const ExactRadius& radius) const {
    return radius.reaches(D, [&](int d) { return apart(a[d], b[d], d); });
  }

  // Whether all pairs of particles of two boxes are surely within the radius. True of boxes that lie in such ones:
  // every step is monotonic, rounding too.
  JZTREE_BOTH bool all_within(const T* alow, const T* ahigh, const T* blow, const T* bhigh, const T* scaled_period,
                              const Within<T>& radius) const {
    T sum = 0, reach_sum = 0;
    for (int d = 0; d < D; ++d) {
      T reach = interval_reach(alow[d], ahigh[d], blow[d], bhigh[d], scaled_period[d]);
      sum += reach * reach;
      reach_sum += reach;
    }
    return sum * above_one<T> < radius.surely2 || (exact_zero && reach_sum == 0);
  }
};

// The rule of distances in T between positions that were wrapped in From, which may be narrower.
template <typename From, int D, typename T>
JZTREE_BOTH DistanceRule<D, T> rule_of_wrapped(DistanceRule<D, T> rule) {
  constexpr double epsilon = std::numeric_limits<T>::epsilon(), given = std::numeric_limits<From>::epsilon();
  rule.rounding *= given / epsilon;
  return rule;
}

}  // namespace jztree
