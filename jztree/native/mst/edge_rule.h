// The order of edges. An edge's weight is its squared length in float64 from the unchanged input positions, times the
// square of the scale of staged positions. That factor is a power of two, so the weight has the digits of the squared
// distance that decides links (common/distance_rule.h).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "common/distance_rule.h"
#include "common/portable.h"
#include "enclosure.h"

namespace jztree {

constexpr int32_t unknown_near = -2;  // in the first column of `near`: the nearest particles of the row are unknown
constexpr double no_weight = std::numeric_limits<double>::infinity();
// A search for the lightest edge of a set also finds edges that are this many times heavier, so that its rows need no
// search in the next rounds. On an AMD EPYC 9004 (Zen 4), the time is the same from 1.5 to 2, and a fifth longer for 1.
constexpr double farther = 1.5;

// The rows of an edge's ends as one number that has their order: the smaller row, then the larger one.
JZTREE_BOTH inline uint64_t pair_of(int32_t a, int32_t b) {
  const uint32_t low = static_cast<uint32_t>(a < b ? a : b), high = static_cast<uint32_t>(a < b ? b : a);
  return uint64_t{low} << 32 | high;
}

constexpr uint64_t no_pair = ~uint64_t{0};

// One number with the rows of an edge's ends, and a bit for certain edges.
struct Link {
  uint64_t bits;

  JZTREE_BOTH Link(uint64_t from_bits) : bits(from_bits) {}
  JZTREE_BOTH Link(int64_t from, int64_t to, bool certain)
      : bits(uint64_t{certain} << 63 | static_cast<uint64_t>(from) << 32 | static_cast<uint64_t>(to)) {}

  JZTREE_BOTH int32_t from() const { return static_cast<int32_t>(bits >> 32 & 0x7fffffff); }
  JZTREE_BOTH int32_t to() const { return static_cast<int32_t>(bits & 0xffffffff); }
  JZTREE_BOTH bool certain() const { return bits >> 63 != 0; }
};

// Weights are not negative, so their bits have their order.
JZTREE_BOTH inline uint64_t bits_of_weight(double weight) {
  uint64_t bits;
  memcpy(&bits, &weight, sizeof(bits));
  return bits;
}

JZTREE_BOTH inline double weight_of_bits(uint64_t bits) {
  double weight;
  memcpy(&weight, &bits, sizeof(weight));
  return weight;
}

// The next larger weight.
JZTREE_BOTH inline double above(double weight) {
  return weight < no_weight ? weight_of_bits(bits_of_weight(weight) + 1) : weight;
}

template <int D, typename T>
struct EdgeRule : DistanceRule<D, T> {
  JZTREE_BOTH explicit EdgeRule(const DistanceRule<D, T>& rule) : DistanceRule<D, T>(rule) {}

  // The weight of the edge between the particles at input positions a and b.
  JZTREE_BOTH double weight(const T* a, const T* b) const {
    double sum = 0;
    for (int d = 0; d < D; ++d) {
      const double length = this->displacement(a[d], b[d], d) * this->scale;
      sum += length * length;
    }
    return sum;
  }

  // The offset between the particles at input positions, in units of 1 / `unit`.
  JZTREE_BOTH NearOffset offset(const T* from, const T* to, double unit) const {
    static_assert(D == 2);
    float offsets[2];
    for (int d = 0; d < 2; ++d) {
      const double length = static_cast<double>(to[d]) - static_cast<double>(from[d]), period = this->period[d];
      const bool across = period > 0 && std::fabs(length) > period / 2;
      offsets[d] = static_cast<float>((across ? this->displacement(to[d], from[d], d) : length) * this->scale * unit);
    }
    return {offsets[0], offsets[1]};
  }

  // Staged squared distances above this are those of heavier edges.
  JZTREE_BOTH T possibly2(double weight) const {
    if (this->rounding == 0) return static_cast<T>(weight) * (1 + 64 * static_cast<T>(epsilon)) + vanishing;
    const double length = std::sqrt(weight) * (1 + 16 * epsilon) + this->rounding;
    return static_cast<T>(length * length) * above_one<T> + vanishing;
  }

  // If a search in staged positions found no particle nearer than one with this weight, no edge to the others weighs
  // less than the result.
  JZTREE_BOTH double surely(double weight) const {
    if (this->rounding == 0) return larger(weight * (1 - 128 * epsilon) - 2 * static_cast<double>(vanishing), 0.);
    const double length = std::sqrt(weight) * (1 - 32 * epsilon) - 2 * this->rounding;
    const double less = length * length * (1 - 64 * epsilon) - 2 * static_cast<double>(vanishing);
    return length > 0 && less > 0 ? less : 0;
  }

  // The edges to particles beyond a distance weigh more than the result.
  JZTREE_BOTH double beyond(T distance) const {
    if (!(distance > 0)) return 0;
    const double length = static_cast<double>(distance) * this->scale;
    return length * length * (1 - 16 * std::numeric_limits<double>::epsilon());
  }

  // The least linking length that links two particles with this weight: its square, rounded, is at least the weight.
  JZTREE_BOTH double linking_length(double weight) const {
    double length = std::sqrt(weight);
    while (length * length < weight) length = above(length);
    for (double less = length; less > 0; length = less) {
      less = weight_of_bits(bits_of_weight(length) - 1);
      if (less * less < weight) break;
    }
    // A result below the smallest normal number is rounded.
    const double unscaled = length * (1 / this->scale);
    return unscaled * this->scale < length ? above(unscaled) : unscaled;
  }

 private:
  static constexpr double epsilon = std::numeric_limits<T>::epsilon();
  static constexpr T vanishing = D * std::numeric_limits<T>::min();
};

}  // namespace jztree
