// Morton keys of 128 bits: two halves of 64, each with floor(64 / d) bits per dimension (in 3D, 42 bits per dimension
// in total).
//
// A key is the z-order cell of a position on a cubic grid. The grid spans the box in periodic dimensions and the
// bounding box of the particles in open dimensions. The first half alone orders nearly everything; the second is only
// used if first halves are equal. G. M. Morton (1966), "A computer oriented geodetic data base".
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "key_shape.h"
#include "periodic.h"
#include "portable.h"

namespace jztree {

struct MortonKey {
  uint64_t high, low;

  JZTREE_BOTH bool operator==(const MortonKey& other) const { return high == other.high && low == other.low; }
  JZTREE_BOTH bool operator<(const MortonKey& other) const {
    return high != other.high ? high < other.high : low < other.low;
  }
};

// The grid of the keys. period[d] is 0 if dimension d is open.
template <int D>
struct KeyGrid : KeyShape<D> {
  double origin[D];
  double period[D];
  double inverse_extent;

  // The grid over the domain. lower, upper: the bounding box of the particles; box: the box lengths, 0 for open
  // dimensions.
  template <typename T>
  JZTREE_BOTH KeyGrid(const KeyShape<D>& shape, const T* lower, const T* upper, const double* box)
      : KeyShape<D>(shape) {
    double extent = 0;
    for (int d = 0; d < D; ++d) {
      period[d] = box[d];
      origin[d] = box[d] > 0 ? 0. : static_cast<double>(lower[d]);
      double length = box[d] > 0 ? box[d] : static_cast<double>(upper[d]) - static_cast<double>(lower[d]);
      extent = std::max(extent, length);
    }
    inverse_extent = 1. / extent;
    // Every particle gets the same key if the domain has no extent, or if its extent or the inverse overflows. The
    // search is then slow but correct.
    if (!(extent > 0) || !std::isfinite(extent) || !std::isfinite(inverse_extent)) inverse_extent = 0;
  }
};

template <int D>
struct Morton {
  template <typename T>
  JZTREE_BOTH static double cell_coordinate(const KeyGrid<D>& grid, int d, T x) {
    double wide = wrap_wide(static_cast<double>(x), grid.period[d]);
    return (wide - grid.origin[d]) * grid.inverse_extent * grid.cells;
  }

  template <typename T>
  JZTREE_BOTH static uint64_t high(const KeyGrid<D>& grid, const T* x) {
    uint64_t key = 0;
    for (int d = 0; d < grid.dims; ++d) {
      double cell = cell_coordinate(grid, d, x[d]);
      uint64_t whole = cell >= grid.cells ? grid.last_cell : cell > 0 ? static_cast<uint64_t>(cell) : 0;
      key |= grid.spread(whole) << (grid.dims - 1 - d);
    }
    return key;
  }

  template <typename T>
  JZTREE_BOTH static MortonKey key(const KeyGrid<D>& grid, const T* x) {
    MortonKey key{0, 0};
    for (int d = 0; d < grid.dims; ++d) {
      double cell = cell_coordinate(grid, d, x[d]);
      uint64_t whole = 0, part = 0;
      if (cell >= grid.cells) {
        whole = part = grid.last_cell;
      } else if (cell > 0) {
        whole = static_cast<uint64_t>(cell);
        part = static_cast<uint64_t>((cell - static_cast<double>(whole)) * grid.cells);
      }
      key.high |= grid.spread(whole) << (grid.dims - 1 - d);
      key.low |= grid.spread(part) << (grid.dims - 1 - d);
    }
    return key;
  }
};

// Position of the highest bit in which two keys differ, counted from 1; 0 if they are equal.
JZTREE_BOTH inline int highest_difference(const MortonKey& a, const MortonKey& b) {
  if (a.high != b.high) return 128 - leading_zeros(a.high ^ b.high);
  if (a.low != b.low) return 64 - leading_zeros(a.low ^ b.low);
  return 0;
}

// Particles that share all bits of a key are ordered along a z-order of the bits of their coordinates, which is as fine
// as the coordinates are. An outlier may make the domain so large that thousands of particles share a cell; without
// this order they would not be sorted in space at all. The rule applies to any number of particles: otherwise the order
// would depend on the number of particles per rank. The comparison finds the highest bit in which two points differ
// without interleaving any bits: T. M. Chan (2002), "Closest-point problems simplified on the RAM".
template <int D>
struct BitOrder {
  uint64_t bits[D];

  template <typename T>
  JZTREE_BOTH BitOrder(const KeyGrid<D>& grid, const T* x) {
    for (int d = 0; d < grid.dims; ++d) bits[d] = rising_bits(wrap_wide(static_cast<double>(x[d]), grid.period[d]));
    for (int d = grid.dims; d < D; ++d) bits[d] = 0;
  }

  JZTREE_BOTH bool operator<(const BitOrder& other) const {
    int highest = 0;
    uint64_t difference = 0;
    for (int d = 0; d < D; ++d) {
      uint64_t here = bits[d] ^ other.bits[d];
      if (difference < here && difference < (difference ^ here)) highest = d, difference = here;
    }
    return bits[highest] < other.bits[highest];
  }
  JZTREE_BOTH bool operator==(const BitOrder& other) const {
    bool equal = true;
    for (int d = 0; d < D; ++d) equal &= bits[d] == other.bits[d];
    return equal;
  }

  // Bits that sort like the numbers.
  JZTREE_BOTH static uint64_t rising_bits(double x) {
    constexpr uint64_t sign = uint64_t{1} << 63;
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (bits == sign) return sign;  // -0 equals 0
    return bits & sign ? ~bits : bits | sign;
  }
};

// The z-order as 64-bit words, the most significant first: the halves of the Morton key; then the z-order of the bits
// of the coordinates (see BitOrder), with as many bits per word as fit. Rows that agree in all words are at one point.
template <int D>
struct OrderWords {
  static constexpr int of_keys = 2;
  static constexpr int most = of_keys + (64 + 64 / D - 1) / (64 / D);

  JZTREE_BOTH static constexpr int count(const KeyShape<D>& shape) {
    return of_keys + (64 + shape.bits - 1) / shape.bits;
  }

  template <typename T>
  JZTREE_BOTH static uint64_t at(const KeyGrid<D>& grid, const T* x, int word) {
    if (word == 0) return Morton<D>::high(grid, x);
    if (word == 1) return Morton<D>::key(grid, x).low;
    BitOrder<D> order(grid, x);
    int above = (word - of_keys) * grid.bits;
    uint64_t key = 0;
    for (int d = 0; d < grid.dims; ++d)
      key |= grid.spread(order.bits[d] << above >> (64 - grid.bits)) << (grid.dims - 1 - d);
    return key;
  }

  // Whether a position is before the given words.
  template <typename T>
  JZTREE_BOTH static bool before(const KeyGrid<D>& grid, const T* x, const uint64_t* words) {
    MortonKey key = Morton<D>::key(grid, x);
    if (key.high != words[0]) return key.high < words[0];
    if (key.low != words[1]) return key.low < words[1];
    for (int word = of_keys; word < count(grid); ++word) {
      uint64_t here = at(grid, x, word);
      if (here != words[word]) return here < words[word];
    }
    return false;
  }
};

}  // namespace jztree
