// Finds how the keys of consecutive rows differ, for many rows at a time, without computing any key.
//
// To compare two keys, take the dimension whose cells differ in the highest bit. The key with the larger cell in this
// dimension is larger: T. M. Chan (2002), "Closest-point problems simplified on the RAM". The exponent of a cell,
// converted to a floating-point number, gives its highest bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cell_block.h"
#include "common/morton.h"

namespace jztree {

template <int D, typename T>
class KeyRises {
 public:
  static constexpr int64_t most = 64;  // rows at a time

  explicit KeyRises(const KeyGrid<D>& grid) : grid_(grid), block_(grid) {
    for (int i = 0; i < most * D; ++i) lowest_[i] = 2 * (64 + grid.dims - i % D - exponent_of_one * grid.dims);
  }

  // Compare the key of each of at most `most` rows from x on with that of the previous row, which must exist. rises:
  // the position of the highest differing bit, counted like in highest_difference; negative if the key is lower than
  // the previous one; 0 if the first halves of both keys are equal. Returns whether all rows are surely finite.
  bool find(const T* x, int64_t rows, int32_t* rises) {
    if constexpr (vector_loop) {
      if (block_.find(x - D, rows + 1)) {
        of_cells(rows, rises);
        return true;
      }
    }
    uint64_t previous = Morton<D>::high(grid_, x - D);
    for (int64_t i = 0; i < rows; ++i) {
      const uint64_t key = Morton<D>::high(grid_, x + i * D);
      const int32_t place = highest_difference({previous, 0}, {key, 0});
      rises[i] = key < previous ? -place : place;
      previous = key;
    }
    return false;
  }

 private:
  static constexpr int exponent_of_one = 127;
  // Floats have 24 bits, so no cell is rounded up to the next power of two.
  static constexpr bool vector_loop = CellBlock<D, T>::fits && KeyShape<D>::most_bits <= 24;

  void of_cells(int64_t rows, int32_t* rises) {
    const int32_t *before = block_.cells(), *cells = before + D;
    const int32_t step = 2 * grid_.dims;
    for (int64_t i = 0; i < rows * D; ++i) {
      float difference = static_cast<float>(cells[i] ^ before[i]);
      int32_t bits;
      std::memcpy(&bits, &difference, sizeof(bits));
      code_[i] = (bits >> 23) * step + lowest_[i] + (cells[i] < before[i]);
    }
    for (int64_t i = 0; i < rows; ++i) {
      int32_t highest = 0;
      for (int d = 0; d < D; ++d) highest = std::max(highest, code_[i * D + d]);
      rises[i] = highest & 1 ? -(highest >> 1) : highest >> 1;
    }
  }

  const KeyGrid<D>& grid_;
  CellBlock<D, T> block_;
  // Twice the position of the highest bit in which cells differ, plus 1 if that bit makes the key descend.
  int32_t lowest_[most * D], code_[most * D];
};

}  // namespace jztree
