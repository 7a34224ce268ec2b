// The rules of smoothing lengths for both backends: the lengths that count, the reach of kernels, and the sources
// within it.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "common/distance_rule.h"
#include "kernel_sums.h"

namespace jztree {

// One number per row, or a single one for all.
struct RowLengths {
  Lengths numbers;

  JZTREE_BOTH double operator[](int64_t row) const { return numbers[numbers.count > 1 ? row : 0]; }
};

// x / h^powers * 2^(e shift), where h is 2^e times a number from 1 to 2. Computed step by step, because h^powers may be
// out of range even if the result is not.
JZTREE_BOTH inline double over_powers(double x, double h, int powers, int shift) {
  int exponent = 0, rounded = 0;
  if (shift != 0) {
    h = std::frexp(h, &exponent);
    // The code that undoes the shift knows h to the 24 bits of float32.
    static_cast<void>(std::frexp(static_cast<float>(h), &rounded));
  }
  for (int i = 0; i < powers; ++i) x /= h;
  return shift == 0 ? x : std::ldexp(x, (exponent + rounded - 1) * shift - exponent * powers);
}

// Scaled lengths below this need float64. Either their squares are too small compared with the extent of the set, which
// is scaled to 2^40, or distances within them lose digits (Scale::precise2).
template <int D, typename T>
JZTREE_BOTH inline double least_narrow_length(const Scale<D, T>& scale) {
  const double precise = 16 * std::sqrt(static_cast<double>(scale.precise2));
  return precise > 0x1p-40 ? precise : 0x1p-40;
}

// Scaled smoothing lengths of queries and of sources, and the weights of both in the resulting length.
template <int D, typename T>
struct KernelLengths {
  RowLengths query, source;
  T of_query, of_source;

  template <typename From>
  explicit KernelLengths(const KernelSums<D, From>& in)
      : query{in.query_h},
        source{in.source_h},
        of_query(in.form == static_cast<int64_t>(KernelForm::gather) ? T{1}
                 : in.form == static_cast<int64_t>(KernelForm::mean) ? T{0.5}
                                                                     : T{0}),
        of_source(1 - of_query) {}

  // Scaled and weighted.
  JZTREE_BOTH T staged_query(int64_t row, const Scale<D, T>& scale) const {
    return scaled_length(query[row], scale) * of_query;
  }
  JZTREE_BOTH T staged_source(int64_t row, const Scale<D, T>& scale) const {
    return scaled_length(source[row], scale) * of_source;
  }

  // The length of a pair, in float64, not scaled.
  JZTREE_BOTH double of_pair(int64_t query_row, int64_t source_row) const {
    double sum = 0;
    if (of_query > 0) sum += static_cast<double>(of_query) * query[query_row];
    if (of_source > 0) sum += static_cast<double>(of_source) * source[source_row];
    return sum;
  }
};

// Bounds of the computed (r / h)^2: up to `surely` a source is within h, above `possibly` it is not.
template <typename V>
struct UnitBounds {
  V surely, possibly;

  // inverse: of h.
  template <int D, typename T>
  JZTREE_BOTH UnitBounds(const V& inverse, const DistanceRule<D, T>& rule) {
    V half = inverse * V(static_cast<T>(2 * rule.rounding)) + V(128 * std::numeric_limits<T>::epsilon());
    surely = V(T{1}) - (half + half);
    possibly = (V(T{1}) + half) * (V(T{1}) + half);
  }
};

}  // namespace jztree
