// The power of two that multiplies positions before distances are computed, so that squared distances neither overflow
// nor underflow in any unit of length. A power of two changes no digit.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "portable.h"

namespace jztree {

// The largest allowed absolute value of coordinates and velocities. Above it, differences and lengths leave the range
// of T (in float64, sums of their products).
template <typename T>
constexpr T farthest = std::is_same<T, float>::value ? T(0x1p125) : T(0x1p480);

template <int D, typename T>
JZTREE_BOTH inline bool is_finite_row(const T* x, int dims = D) {
  bool finite = true;
  for (int d = 0; d < dims; ++d) finite &= std::isfinite(x[d]);
  return finite;
}

template <int D, typename T>
JZTREE_BOTH inline bool is_within_range(const T* x) {
  bool within = true;
  for (int d = 0; d < D; ++d) within &= std::fabs(x[d]) <= farthest<T>;
  return within;
}

// The span of a set in its open dimensions.
struct OpenSpan {
  double extent = 0, farthest_out = 0;

  JZTREE_BOTH void include(double low, double high) {
    if (!(low <= high)) return;
    extent = high - low > extent ? high - low : extent;
    for (double x : {std::fabs(low), std::fabs(high)}) farthest_out = x > farthest_out ? x : farthest_out;
  }

  // The extent that determines the scale. Coordinates that are much larger than the width of the set must not overflow.
  template <typename T>
  JZTREE_BOTH double for_scale() const {
    double least = farthest_out * (std::is_same<T, float>::value ? 0x1p-85 : 0x1p-600);
    return extent > 0 && extent < least ? least : extent;
  }
};

template <int D, typename T>
struct Scale {
  T factor, inverse;
  T period[D];       // scaled; infinite for open dimensions
  T period_rest[D];  // rounding error of the scaled period in T
  double raw_period[D];
  bool periodic;  // in any dimension
  // Squared distances below this may have lost digits. It is 0 in float64, because scaled squares then cover every
  // ratio of lengths that occurs in practice.
  T precise2;

  // box: lengths, 0 for open dimensions. open_extent: extent of the set in its open dimensions (OpenSpan::for_scale).
  // For a part of a wider set, this is the extent of the wider set, so that all parts agree on where precision is lost.
  JZTREE_BOTH Scale(const double* box, double open_extent) {
    double extent = open_extent;
    periodic = false;
    for (int d = 0; d < D; ++d) {
      raw_period[d] = box[d];
      periodic |= box[d] > 0;
      extent = box[d] > extent ? box[d] : extent;
    }
    int exponent = scale_exponent(extent);
    factor = static_cast<T>(std::ldexp(1., exponent));
    inverse = static_cast<T>(std::ldexp(1., -exponent));
    for (int d = 0; d < D; ++d) {
      // The length is scaled before it is rounded, because a length near the smallest numbers has few digits in T.
      const double length = std::ldexp(box[d], exponent);
      period[d] = box[d] > 0 ? static_cast<T>(length) : std::numeric_limits<T>::infinity();
      period_rest[d] = box[d] > 0 ? static_cast<T>(length - static_cast<double>(period[d])) : T{0};
    }
    precise2 = least_precise2();
  }

  // Infinite for open dimensions.
  JZTREE_BOTH double scaled_period(int d) const {
    return raw_period[d] > 0 ? raw_period[d] * static_cast<double>(factor) : std::numeric_limits<double>::infinity();
  }

 private:
  JZTREE_BOTH T least_precise2() const {
    if (!std::is_same<T, float>::value) return 0;
    // Well above the smallest normal number, so that no square of a coordinate loses digits.
    T least2 = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon();
    // If T cannot represent the period, it cannot represent the rounding errors of wrapped positions: they are rounded
    // at 2^-49 periods. The bound depends only on the box, so that all ranks make the same decision.
    for (int d = 0; d < D; ++d) {
      T length = period_rest[d] != 0 ? period[d] * T(0x1p-26) : T{0};
      least2 = length * length > least2 ? length * length : least2;
    }
    return least2;
  }

  // Extents are scaled to 2^40 (float64: 2^400). This leaves space for squares above, and much more below, because
  // distances may be many orders of magnitude smaller than the extent.
  JZTREE_BOTH static int scale_exponent(double extent) {
    constexpr bool narrow = std::is_same<T, float>::value;
    constexpr int limit = narrow ? 100 : 1000, target = narrow ? 40 : 400;
    if (!(extent > 0)) return 0;
    if (!std::isfinite(extent)) return -limit;
    int exponent = 0;
    std::frexp(extent, &exponent);
    exponent = target - exponent;
    return exponent > limit ? limit : exponent < -limit ? -limit : exponent;
  }
};

// A length in scaled units. Its square may overflow, but the length itself must not, otherwise 0 times infinity would
// become a distance.
template <int D, typename T>
JZTREE_BOTH inline T scaled_length(double length, const Scale<D, T>& scale) {
  constexpr double most = static_cast<double>(std::numeric_limits<T>::max()) / 8;
  double scaled = length * static_cast<double>(scale.factor);
  return static_cast<T>(scaled < most ? scaled : most);
}

}  // namespace jztree
