// Cells of coordinates on the grid of Morton keys, for many rows in a row, in vector loops.
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
  static constexpr int64_t most = 65;  // rows at a time: 64, and the one before
  // Cells of more bits have no vector loop.
  static constexpr bool fits = Morton<D>::bits < 32;

  explicit CellBlock(const KeyGrid<D>& grid) : inverse_extent_(grid.inverse_extent) {
    for (int d = 0; d < D; ++d) {
      const double period = grid.period[d];
      origin_[d] = grid.origin[d];
      low_[d] = not_below(period > 0 ? 0. : origin_[d]);
      // A cell beyond the last one is to be a number that there is; 0 / 0 where there is no extent.
      high_[d] = not_below(period > 0 ? period : origin_[d] + 256 / inverse_extent_);
    }
    for (int i = D; i < most * D; ++i) {
      origin_[i] = origin_[i - D];
      low_[i] = low_[i - D];
      high_[i] = high_[i - D];
    }
  }

  // Finds the cells of at most `most` rows from x on. Returns false, and they are of no use, if one of the rows is not
  // finite, to be wrapped, or outside of the domain.
  bool find(const T* x, int64_t rows) {
    if (!(inverse_extent_ > 0)) return false;
    int outside = 0;
    for (int64_t i = 0; i < rows * D; ++i) outside |= !(x[i] >= low_[i]) | !(x[i] < high_[i]);
    if (outside) return false;
    for (int64_t i = 0; i < rows * D; ++i) {
      // As Morton::cell_coordinate.
      double cell = (static_cast<double>(x[i]) - origin_[i]) * inverse_extent_ * Morton<D>::cells;
      cell_[i] = std::min(static_cast<int32_t>(cell), static_cast<int32_t>(Morton<D>::last_cell));
    }
    return true;
  }

  // D cells a row.
  const int32_t* cells() const { return cell_; }

 private:
  // The first number of type T that is not below x: numbers of type T are below that where they are below x.
  static T not_below(double x) {
    T near = static_cast<T>(x);
    return static_cast<double>(near) < x ? std::nextafter(near, std::numeric_limits<T>::infinity()) : near;
  }

  double inverse_extent_;
  double origin_[most * D];
  T low_[most * D], high_[most * D];
  int32_t cell_[most * D];
};

}  // namespace jztree
