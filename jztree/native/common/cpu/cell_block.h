// Cells of coordinates on the grid of Morton keys, for many rows at a time, in vector loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "common/morton.h"

namespace jztree {

template <int D, typename T>
class CellBlock {
 public:
  static constexpr int64_t most = 65;  // rows at a time: 64, and the previous one
  // Cells of more bits have no vector loop.
  static constexpr bool fits = KeyShape<D>::most_bits < 32;

  explicit CellBlock(const KeyGrid<D>& grid) : shape_(grid), inverse_extent_(grid.inverse_extent) {
    for (int d = 0; d < D; ++d) {
      const double period = grid.period[d];
      origin_[d] = grid.origin[d];
      low_[d] = not_below(period > 0 ? 0. : origin_[d]);
      // In open dimensions, rows above the domain get the last cell. The limit keeps the cell a valid int32 before it
      // is reduced to the last one. (If the domain has no extent, `find` returns false before it uses the limit.)
      high_[d] = not_below(period > 0 ? period : origin_[d] + 256 / inverse_extent_);
    }
    for (int i = D; i < most * D; ++i) {
      origin_[i] = origin_[i - D];
      low_[i] = low_[i - D];
      high_[i] = high_[i - D];
    }
  }

  // Find the cells of at most `most` rows from x on. Returns false if any row is not finite, must be wrapped, or is
  // below or far above the domain; the cells are then meaningless.
  bool find(const T* x, int64_t rows) {
    if (!(inverse_extent_ > 0)) return false;
    int outside = 0;
    for (int64_t i = 0; i < rows * D; ++i) outside |= !(x[i] >= low_[i]) | !(x[i] < high_[i]);
    if (outside) return false;
    for (int64_t i = 0; i < rows * D; ++i) {
      // The same as Morton::cell_coordinate.
      double cell = (static_cast<double>(x[i]) - origin_[i]) * inverse_extent_ * shape_.cells;
      cell_[i] = std::min(static_cast<int32_t>(cell), static_cast<int32_t>(shape_.last_cell));
    }
    return true;
  }

  // D cells per row.
  const int32_t* cells() const { return cell_; }

 private:
  // The first number of type T that is not below x: a number of type T is below it exactly if it is below x.
  static T not_below(double x) {
    T near = static_cast<T>(x);
    return static_cast<double>(near) < x ? std::nextafter(near, std::numeric_limits<T>::infinity()) : near;
  }

  KeyShape<D> shape_;
  double inverse_extent_;
  double origin_[most * D];
  T low_[most * D], high_[most * D];
  int32_t cell_[most * D];
};

}  // namespace jztree
