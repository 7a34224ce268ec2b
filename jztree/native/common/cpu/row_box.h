// Boxes that grow: around rows in wrapped coordinates, and around other boxes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "common/morton.h"

namespace jztree {

template <int D, typename T>
void no_box(T* low, T* high) {
  std::fill(low, low + D, std::numeric_limits<T>::infinity());
  std::fill(high, high + D, -std::numeric_limits<T>::infinity());
}

// Extend [low, high] to another box.
template <int D, typename T>
void include_box(const T* other_low, const T* other_high, T* low, T* high) {
  for (int d = 0; d < D; ++d) {
    low[d] = std::min(low[d], other_low[d]);
    high[d] = std::max(high[d], other_high[d]);
  }
}

// Extend [low, high] to the rows [begin, end). Rows outside the periodic box are rare. They are wrapped one by one only
// if the box of the unwrapped rows shows that such rows exist.
template <int D, typename T>
void include_rows(const T* pos, int64_t begin, int64_t end, const double* period, T* low, T* high) {
  T least[D], most[D];
  no_box<D>(least, most);
  for (int64_t row = begin; row < end; ++row)
    for (int d = 0; d < D; ++d) {
      least[d] = std::min(least[d], pos[row * D + d]);
      most[d] = std::max(most[d], pos[row * D + d]);
    }
  for (int d = 0; d < D; ++d) {
    if (period[d] > 0 && (least[d] < 0 || static_cast<double>(most[d]) >= period[d])) {
      for (int64_t row = begin; row < end; ++row) {
        T x = wrap(pos[row * D + d], period[d]);
        low[d] = std::min(low[d], x);
        high[d] = std::max(high[d], x);
      }
    } else {
      low[d] = std::min(low[d], least[d]);
      high[d] = std::max(high[d], most[d]);
    }
  }
}

}  // namespace jztree
