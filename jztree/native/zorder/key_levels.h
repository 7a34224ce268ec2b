// The keys of the z-order, level by level, for many rows at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cpu/key_block.h"
#include "common/morton.h"

namespace jztree {

// The keys by which rows are sorted, one level after the other; see OrderWords.
template <int D, typename T>
class KeyLevels {
 public:
  static constexpr int of_keys = OrderWords<D>::of_keys;

  explicit KeyLevels(const KeyGrid<D>& grid) : grid_(grid), block_(grid) {}

  static int count(const KeyGrid<D>& grid) { return OrderWords<D>::count(grid); }

  static uint64_t at(const KeyGrid<D>& grid, const T* x, int level) { return OrderWords<D>::at(grid, x, level); }

  // Call use(i, key, finite) for each of n consecutive positions. finite: whether the position is surely finite.
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
