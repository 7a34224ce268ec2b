// Morton keys of 128 bits: two halves of 64, each with floor(64 / D) bits a dimension (42 bits a dimension in 3D).
//
// A key is the z-order cell of a position on a cubic grid over the domain: the box where it is periodic, the bounding
// box of all particles where it is open. The first half alone orders nearly everything; the second is looked at only
// where first halves are equal. G. M. Morton (1966), "A computer oriented geodetic data base".
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace jztree {

struct MortonKey {
  uint64_t high, low;

  bool operator==(const MortonKey& other) const { return high == other.high && low == other.low; }
  bool operator<(const MortonKey& other) const { return high != other.high ? high < other.high : low < other.low; }
};

// x moved into [0, period] by whole periods. The upper end is reached only by rounding.
inline double wrap_wide(double x, double period) {
  return period > 0 && !(x >= 0 && x < period) ? x - period * std::floor(x / period) : x;
}

template <typename T>
inline T wrap(T x, double period) {
  return static_cast<T>(wrap_wide(static_cast<double>(x), period));
}

// The grid that keys are taken on. period[d] is 0 where dimension d is open.
template <int D>
struct KeyGrid {
  double origin[D];
  double period[D];
  double inverse_extent;

  // The grid over the domain. lower, upper: the bounding box of all particles; box: the box lengths, 0 where open.
  template <typename T>
  KeyGrid(const T* lower, const T* upper, const double* box) {
    double extent = 0;
    for (int d = 0; d < D; ++d) {
      period[d] = box[d];
      origin[d] = box[d] > 0 ? 0. : static_cast<double>(lower[d]);
      double length = box[d] > 0 ? box[d] : static_cast<double>(upper[d]) - static_cast<double>(lower[d]);
      extent = std::max(extent, length);
    }
    set_extent(extent);
  }

  // A finer grid over a part of the domain, given by the bounds of wrapped positions.
  KeyGrid(const KeyGrid& domain, const double* lower, const double* upper) {
    double extent = 0;
    for (int d = 0; d < D; ++d) {
      period[d] = domain.period[d];
      origin[d] = lower[d];
      extent = std::max(extent, upper[d] - lower[d]);
    }
    set_extent(extent);
  }

 private:
  void set_extent(double extent) {
    inverse_extent = 1. / extent;
    // A domain without extent, or one so wide or so small that this overflows, gives every particle the same key: slow
    // for that set, never wrong.
    if (!(extent > 0) || !std::isfinite(extent) || !std::isfinite(inverse_extent)) inverse_extent = 0;
  }
};

namespace detail {

constexpr int next_power_of_two(int value) {
  int power = 1;
  while (power < value) power *= 2;
  return power;
}

constexpr double two_to_the(int exponent) {
  double power = 1;
  for (int i = 0; i < exponent; ++i) power *= 2;
  return power;
}

// Bits of a word in which groups of `size` bits stand `size * D` apart.
template <int D>
constexpr uint64_t group_mask(int size) {
  uint64_t mask = 0;
  for (int start = 0; start < 64; start += size * D)
    for (int bit = start; bit < start + size && bit < 64; ++bit) mask |= uint64_t{1} << bit;
  return mask;
}

// Spread the low 64 / D bits of x so that they stand D apart, by halving the group size until it is one.
template <int D, int Size>
inline uint64_t spread_step(uint64_t x) {
  if constexpr (Size == 0) {
    return x;
  } else {
    constexpr uint64_t mask = group_mask<D>(Size);
    constexpr int shift = Size * (D - 1);
    if constexpr (shift < 64) x = (x | (x << shift)) & mask;
    return spread_step<D, Size / 2>(x);
  }
}

template <int D>
inline uint64_t spread(uint64_t x) {
  if constexpr (D == 1) return x;
  return spread_step<D, next_power_of_two(64 / D) / 2>(x);
}

}  // namespace detail

template <int D>
struct Morton {
  static constexpr int bits = 64 / D;  // a dimension, in each half
  static constexpr double cells = detail::two_to_the(bits);
  static constexpr uint64_t last_cell = ~uint64_t{0} >> (64 - bits);

  template <typename T>
  static double cell_coordinate(const KeyGrid<D>& grid, int d, T x) {
    double wide = wrap_wide(static_cast<double>(x), grid.period[d]);
    return (wide - grid.origin[d]) * grid.inverse_extent * cells;
  }

  template <typename T>
  static uint64_t high(const KeyGrid<D>& grid, const T* x) {
    uint64_t key = 0;
    for (int d = 0; d < D; ++d) {
      double cell = cell_coordinate(grid, d, x[d]);
      uint64_t whole = cell >= cells ? last_cell : cell > 0 ? static_cast<uint64_t>(cell) : 0;
      key |= detail::spread<D>(whole) << (D - 1 - d);
    }
    return key;
  }

  template <typename T>
  static MortonKey key(const KeyGrid<D>& grid, const T* x) {
    MortonKey key{0, 0};
    for (int d = 0; d < D; ++d) {
      double cell = cell_coordinate(grid, d, x[d]);
      uint64_t whole = 0, part = 0;
      if (cell >= cells) {
        whole = part = last_cell;
      } else if (cell > 0) {
        whole = static_cast<uint64_t>(cell);
        part = static_cast<uint64_t>((cell - static_cast<double>(whole)) * cells);
      }
      key.high |= detail::spread<D>(whole) << (D - 1 - d);
      key.low |= detail::spread<D>(part) << (D - 1 - d);
    }
    return key;
  }
};

// Place of the highest bit in which two keys differ, counted from 1; 0 if they are equal.
inline int highest_difference(const MortonKey& a, const MortonKey& b) {
  if (a.high != b.high) return 128 - __builtin_clzll(a.high ^ b.high);
  if (a.low != b.low) return 64 - __builtin_clzll(a.low ^ b.low);
  return 0;
}

}  // namespace jztree
