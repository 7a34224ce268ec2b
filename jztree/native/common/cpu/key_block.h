// First halves of Morton keys for many rows at a time, in vector loops. The results are the same as for single rows.
#pragma once

#include <cstdint>

#include "cell_block.h"
#include "common/morton.h"

namespace jztree {

template <int D, typename T>
class KeyBlock {
 public:
  static constexpr int64_t most = 64;  // rows at a time

  explicit KeyBlock(const KeyGrid<D>& grid) : grid_(grid), block_(grid) {}

  // Keys of at most `most` rows from x on. Returns whether all rows are surely finite.
  bool high(const T* x, int64_t rows, uint64_t* keys) {
    if constexpr (CellBlock<D, T>::fits) {
      if (block_.find(x, rows)) {
        const int32_t* cells = block_.cells();
        const KeyShape<D> shape = grid_;  // a copy, because storing a key could otherwise change it
        for (int64_t i = 0; i < rows; ++i) {
          keys[i] = 0;
          for (int d = 0; d < shape.dims; ++d)
            keys[i] |= shape.spread(static_cast<uint64_t>(cells[i * D + d])) << (shape.dims - 1 - d);
        }
        return true;
      }
    }
    for (int64_t i = 0; i < rows; ++i) keys[i] = Morton<D>::high(grid_, x + i * D);
    return false;
  }

 private:
  const KeyGrid<D>& grid_;
  CellBlock<D, T> block_;
};

}  // namespace jztree
