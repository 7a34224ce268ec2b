// Distances from one particle to many, by the rule that decides which pairs are within a radius
// (common/distance_rule.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/distance_rule.h"
#include "common/geometry.h"
#include "lanes.h"

namespace jztree {

template <int64_t N>
inline Lanes<double, N> size_of(const Lanes<double, N>& x) {
  return larger<Lanes<double, N>>(x, -x);
}

// The integers nearest to quotients below 2^51, ties to even: a sum with the large constant has no digits after the
// point.
inline Lanes<double> nearest_whole(const Lanes<double>& x, double period) {
  const Lanes<double> no_digits(0x1.8p52), length(period);
  return (x / length + no_digits) - no_digits;
}

// DistanceRule::apart without its sign, for coordinates that differ by at most a period.
template <int64_t N>
inline Lanes<double, N> shortest(const Lanes<double, N>& x, const Lanes<double, N>& y, double period) {
  using V = Lanes<double, N>;
  const V difference = x - y, size = size_of(difference), half(period / 2);
  if (lanes_at_most(size, half) == (1u << N) - 1) return size;
  const V error = difference_error(x, y, difference);
  const V around = (V(period) - size) - choose(difference < V{}, -error, error);
  return choose(size > half, around, size);
}

template <int D, typename T>
class ExactDistances {
 public:
  // pos: (n, D), input positions of the sources.
  ExactDistances(const DistanceRule<D, T>& rule, const T* pos) : rule_(rule), pos_(pos) {}

  // out[i]: the distance of the source in row rows[i] from a particle at `at`, with the bits of the rule.
  void find(const T* at, const int32_t* rows, int64_t number, T* out) const { find_all<true>(at, rows, number, out); }

  // out[i]: the square of that, times the square of the rule's factor.
  void find_squares(const T* at, const int32_t* rows, int64_t number, double* out) const {
    find_all<false>(at, rows, number, out);
  }

 private:
  // The number of distances per batch: a vector load stalls unless its numbers were stored long before.
  static constexpr int64_t most = 8 * lanes;

  template <bool Roots, typename Out>
  void find_all(const T* at, const int32_t* rows, int64_t number, Out* out) const {
    for (int64_t first = 0; first < number; first += most)
      find_some<Roots>(at, rows + first, std::min(most, number - first), out + first);
  }

  template <bool Roots, typename Out>
  __attribute__((flatten)) void find_some(const T* at, const int32_t* rows, int64_t number, Out* out) const {
    T there[D][most];
    Out found[most];
    for (int64_t i = 0; i < number; ++i) {
      const T* source = pos_ + int64_t{rows[i]} * D;
      for (int d = 0; d < D; ++d) there[d][i] = source[d];
    }
    const int64_t end = (number + lanes - 1) / lanes * lanes;
    for (int d = 0; d < D; ++d) std::fill(there[d] + number, there[d] + end, T{0});
    for (int64_t first = 0; first < end; first += lanes) {
      Lanes<double> sum{};
      for (int d = 0; d < D; ++d) {
        Lanes<double> displacement = difference(at[d], there[d] + first, d);
        sum = sum + displacement * displacement;
      }
      if (Roots) sum = square_root(sum) * (1 / rule_.factor);
      store(sum, found + first);
    }
    std::memcpy(out, found, static_cast<size_t>(number) * sizeof(Out));
  }

  // The same as DistanceRule::apart, times the factor.
  Lanes<double> difference(T at, const T* there, int d) const {
    const double period = rule_.period[d], from = nearer(at, period);
    Lanes<double> to;
    load(there, to);
    if (!(period > 0)) return (Lanes<double>(from) - to) * rule_.factor;
    if (lanes_at_most(size_of(to), Lanes<double>(period)) != 0xffff) {
      double moved[lanes];
      for (int64_t i = 0; i < lanes; ++i) moved[i] = nearer(there[i], period);
      load(moved, to);
    }
    if (lanes_at_most(size_of(Lanes<double>(from) - to), Lanes<double>(period)) == 0xffff)
      return shortest(Lanes<double>(from), to, period) * rule_.factor;
    double one[lanes];
    for (int64_t i = 0; i < lanes; ++i) one[i] = rule_.displacement(at, there[i], d);
    Lanes<double> displacement;
    load(one, displacement);
    return displacement * rule_.factor;
  }

  const DistanceRule<D, T>& rule_;
  const T* pos_;
};

}  // namespace jztree
