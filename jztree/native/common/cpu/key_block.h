// First halves of Morton keys for many rows in a row: the same numbers as one by one, in vector loops.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "common/morton.h"

namespace jztree {

template <int D, typename T>
class KeyBlock {
 public:
  static constexpr int64_t most = 32;  // rows at a time

  explicit KeyBlock(const KeyGrid<D>& grid) : grid_(grid) {
    for (int i = 0; i < most * D; ++i) {
      bool open = !(grid.period[i % D] > 0);
      origin_[i] = grid.origin[i % D];
      low_[i] = open ? -std::numeric_limits<double>::max() : 0.;
      high_[i] = open ? std::numeric_limits<double>::infinity() : grid.period[i % D];
    }
  }

  // Keys of at most `most` rows from x on. Returns whether all of them are sure to be finite.
  bool high(const T* x, int64_t rows, uint64_t* keys) {
    if constexpr (vector_cells) {
      if (find_cells(x, rows * D)) {
        for (int64_t i = 0; i < rows; ++i) {
          keys[i] = 0;
          for (int d = 0; d < D; ++d)
            keys[i] |= detail::spread<D>(static_cast<uint64_t>(cell_[i * D + d])) << (D - 1 - d);
        }
        return true;
      }
    }
    for (int64_t i = 0; i < rows; ++i) keys[i] = Morton<D>::high(grid_, x + i * D);
    return false;
  }

 private:
  static constexpr bool vector_cells = Morton<D>::bits < 32;

  // Cells of coordinates. Returns false, and nothing of use, if one of them is to be wrapped or not finite.
  bool find_cells(const T* x, int64_t count) {
    constexpr double last = static_cast<double>(Morton<D>::last_cell);
    double inverse_extent = grid_.inverse_extent;
    int64_t outside = 0;
    for (int64_t i = 0; i < count; ++i) {
      double wide = static_cast<double>(x[i]);
      outside += !(wide >= low_[i]) | !(wide < high_[i]);
      // As Morton::cell_coordinate, and cut to the cells that there are before the fraction is.
      double cell = (wide - origin_[i]) * inverse_extent * Morton<D>::cells;
      cell_[i] = static_cast<int32_t>(std::min(std::max(0., cell), last));
    }
    return outside == 0;
  }

  const KeyGrid<D>& grid_;
  double origin_[most * D], low_[most * D], high_[most * D];
  int32_t cell_[most * D];
};

}  // namespace jztree
