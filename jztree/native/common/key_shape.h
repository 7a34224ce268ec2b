// How Morton keys interleave the bits of cells.
#pragma once

#include <cstdint>

#include "dims.h"
#include "portable.h"

#if defined(__AVX512F__) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

namespace jztree {
namespace detail {

constexpr int next_power_of_two(int value) {
  int power = 1;
  while (power < value) power *= 2;
  return power;
}

JZTREE_BOTH constexpr double two_to_the(int exponent) {
  double power = 1;
  for (int i = 0; i < exponent; ++i) power *= 2;
  return power;
}

// A mask of groups of `size` bits that are `size * dims` apart.
JZTREE_BOTH constexpr uint64_t group_mask(int dims, int size) {
  uint64_t mask = 0;
  for (int start = 0; start < 64; start += size * dims)
    for (int bit = start; bit < start + size && bit < 64; ++bit) mask |= uint64_t{1} << bit;
  return mask;
}

// Spread the low 64 / D bits of x so that they are D apart, by halving the group size until it is one.
template <int D, int Size>
JZTREE_BOTH inline uint64_t spread_step(uint64_t x) {
  if constexpr (Size == 0) {
    return x;
  } else {
    constexpr uint64_t mask = group_mask(D, Size);
    constexpr int shift = Size * (D - 1);
    if constexpr (shift < 64) x = (x | (x << shift)) & mask;
    return spread_step<D, Size / 2>(x);
  }
}

}  // namespace detail

// The keys of rows with D columns.
template <int D>
struct KeyShape {
  static constexpr int dims = D;
  static constexpr int bits = 64 / D, most_bits = bits;  // per dimension, in each half
  static constexpr double cells = detail::two_to_the(bits);
  static constexpr uint64_t last_cell = ~uint64_t{0} >> (64 - bits);

  JZTREE_BOTH explicit KeyShape(int) {}

  // The low `bits` bits of x, moved so that they are D apart. The other bits must be 0.
  JZTREE_BOTH static uint64_t spread(uint64_t x) {
    if constexpr (D == 1) return x;
#if defined(__AVX512F__) && !defined(__CUDACC__)
    // Processors without AVX-512 may also have this instruction, but some take a hundred cycles for it.
    constexpr uint64_t mask = detail::group_mask(D, 1);
    return _pdep_u64(x, mask);
#else
    return detail::spread_step<D, detail::next_power_of_two(bits) / 2>(x);
#endif
  }
};

// The keys of rows with 4 to 8 columns, which share one compiled kernel. Keys depend on the number of columns, and
// ignore those that pad rows.
template <>
struct KeyShape<max_dims> {
  static constexpr int most_bits = 64 / 4;

  int dims, bits;
  double cells;
  uint64_t last_cell;

  JZTREE_BOTH explicit KeyShape(int given_dims)
      : dims(given_dims),
        bits(64 / given_dims),
        cells(detail::two_to_the(bits)),
        last_cell(~uint64_t{0} >> (64 - bits)) {
    for (int step = 0; step < steps; ++step) masks_[step] = detail::group_mask(dims, most_bits >> (step + 1));
  }

  JZTREE_BOTH uint64_t spread(uint64_t x) const {
#if defined(__AVX512F__) && !defined(__CUDACC__)
    return _pdep_u64(x, masks_[steps - 1]);
#else
    for (int step = 0; step < steps; ++step) x = (x | x << (most_bits >> (step + 1)) * (dims - 1)) & masks_[step];
    return x;
#endif
  }

 private:
  static constexpr int steps = 4;  // groups of 8, 4, 2 and 1 bits

  uint64_t masks_[steps];
};

}  // namespace jztree
