// What the z-order is by: Morton keys, and the bits of coordinates that share one.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../common/morton.h"
#include "key_block.h"

namespace jztree {

// What rows are sorted by, one level after the other: the halves of their Morton keys; then, if many rows share a whole
// key, the z-order of the bits of their coordinates (see BitOrder), as many at a time as fit into 64 bits.
template <int D, typename T>
class KeyLevels {
 public:
  static constexpr int of_keys = 2;
  static constexpr int count = of_keys + (64 + Morton<D>::bits - 1) / Morton<D>::bits;

  explicit KeyLevels(const KeyGrid<D>& grid) : grid_(grid), block_(grid) {}

  static uint64_t at(const KeyGrid<D>& grid, const T* x, int level) {
    if (level == 0) return Morton<D>::high(grid, x);
    if (level == 1) return Morton<D>::key(grid, x).low;
    constexpr int bits = Morton<D>::bits;
    BitOrder<D> order(grid, x);
    int above = (level - of_keys) * bits;
    uint64_t key = 0;
    for (int d = 0; d < D; ++d) key |= detail::spread<D>(order.bits[d] << above >> (64 - bits)) << (D - 1 - d);
    return key;
  }

  // Calls use(i, key, finite) for each of n consecutive positions. finite: whether it is sure that this one is.
  template <typename Use>
  void each(const T* x, int64_t n, int level, const Use& use) {
    uint64_t keys[KeyBlock<D, T>::most];
    for (int64_t begin = 0; begin < n; begin += KeyBlock<D, T>::most) {
      int64_t rows = std::min(n - begin, KeyBlock<D, T>::most);
      bool finite = false;
      if (level == 0) {
        finite = block_.high(x + begin * D, rows, keys);
      } else {
        for (int64_t i = 0; i < rows; ++i) keys[i] = at(grid_, x + (begin + i) * D, level);
      }
      for (int64_t i = 0; i < rows; ++i) use(begin + i, keys[i], finite);
    }
  }

 private:
  const KeyGrid<D>& grid_;
  KeyBlock<D, T> block_;
};

}  // namespace jztree
