// Positions moved into a periodic box.
#pragma once

#include <cmath>

#include "portable.h"

namespace jztree {

// Whether x is only a few periods away, so that a multiple of the period is as exact as x. Farther away, only the
// remainder of a division is exact.
JZTREE_BOTH inline bool is_few_periods(double x, double period) { return std::fabs(x) < 0x1p25 * period; }

// Move x into [0, period) by any number of whole periods. Not inlined, because it takes many registers on a GPU and is
// rarely called.
JZTREE_APART inline double wrap_far(double x, double period) {
  double rest = std::fmod(x, period);
  return rest < 0 ? rest + period : rest;
}

// A difference plus its rounding error, minus a number of periods. The result is the same as with a single rounding.
JZTREE_BOTH inline double less_periods(double difference, double error, double periods, double period) {
  if (std::fabs(periods) <= 1) return (difference - period * periods) + error;  // std::fma is slow on some CPUs
  return std::fma(-period, periods, difference) + error;
}

// The number of whole periods below x. This number must be small.
JZTREE_BOTH inline double periods_below(double x, double period) {
  const double periods = std::floor(x / period);
  // The quotient may have been rounded up to a whole number.
  return less_periods(x, 0, periods, period) < 0 ? periods - 1 : periods;
}

// Move x into [0, period] by whole periods, and round once. The result is the upper end only if rounding leads there.
JZTREE_BOTH inline double wrap_wide(double x, double period) {
  if (!(period > 0) || (x >= 0 && x < period)) return x;
  return is_few_periods(x, period) ? less_periods(x, 0, periods_below(x, period), period) : wrap_far(x, period);
}

// The rounding error of x - y: exactly x - y minus `rounded` (D. E. Knuth, 1969, The Art of Computer Programming,
// volume 2). V: double or a vector of doubles.
template <typename V>
JZTREE_BOTH inline V difference_error(const V& x, const V& y, const V& rounded) {
  const V part = rounded - x;
  return (x - (rounded - part)) - (y + part);
}

// A coordinate, moved into the box if it is so far away that differences would lose digits.
JZTREE_BOTH inline double nearer(double x, double period) {
  return period > 0 && !is_few_periods(x, period) ? wrap_wide(x, period) : x;
}

// The distance from y to the nearest image of x along one dimension, rounded once, with its sign.
JZTREE_BOTH inline double nearest_difference(double x, double y, double period) {
  x = nearer(x, period);
  y = nearer(y, period);
  const double length = x - y;
  // The quotient of a smaller length would be rounded to 0.
  if (!(period > 0 && std::fabs(length) > period / 2)) return length;
  const double periods = std::nearbyint(length / period);
  // The difference is about as long as the period, so its rounding error is not negligible relative to the short
  // remainder.
  const double error = difference_error(x, y, length);
  const double rest = less_periods(length, error, periods, period);
  // The quotient may have been rounded to the other side of a half.
  return std::fabs(rest) > period / 2 ? rest - std::copysign(period, rest) : rest;
}

// A position moved into the box without rounding: the sum of `wide`, the result of wrap_wide, and a much smaller
// `rest`.
struct ExactlyWrapped {
  double wide, rest;

  JZTREE_BOTH ExactlyWrapped(double x, double period) : wide(wrap_wide(x, period)), rest(0) {
    if (!(period > 0) || (x >= 0 && x < period)) return;
    double moved = x, by = 0, by_rest = 0;  // wide is moved - (by + by_rest), rounded
    if (is_few_periods(x, period)) {
      const double periods = periods_below(x, period);
      by = period * periods;
      by_rest = std::fma(period, periods, -by);
    } else {
      moved = std::fmod(x, period);
      if (moved < 0) by = -period;
    }
    const double difference = moved - by;
    rest = (difference - wide) + (difference_error(moved, by, difference) - by_rest);
  }

  JZTREE_BOTH bool operator==(const ExactlyWrapped& other) const {
    return (wide - other.wide) + (rest - other.rest) == 0;
  }

  // The rounding error of this position in T.
  template <typename T>
  JZTREE_BOTH double rest_of(T rounded) const {
    return (wide - static_cast<double>(rounded)) + rest;
  }
};

template <typename T>
JZTREE_BOTH inline T wrap(T x, double period) {
  return static_cast<T>(wrap_wide(static_cast<double>(x), period));
}

// The rounding error of `wrap`, times a factor.
template <typename T, typename From>
JZTREE_BOTH inline T rest_of_wrap(From x, double period, T factor) {
  const From wrapped = wrap(x, period);
  if (wrapped == x) return 0;
  const double rest = ExactlyWrapped(static_cast<double>(x), period).rest_of(wrapped);
  return static_cast<T>(rest * static_cast<double>(factor));
}

// Whether two positions are at the same place of the box.
template <typename T>
JZTREE_BOTH inline bool same_in_box(T x, T y, double period) {
  return x == y || ExactlyWrapped(static_cast<double>(x), period) == ExactlyWrapped(static_cast<double>(y), period);
}

}  // namespace jztree
