// Finds rows that sort before the previous row in the z-order, many rows at a time. For CPUs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cpu/key_rises.h"
#include "common/scale.h"
#include "is_before.h"

namespace jztree {

template <int D, typename T>
class FallingRows {
 public:
  FallingRows(const KeyGrid<D>& grid, const T* pos) : grid_(grid), pos_(pos), rises_(grid) {}

  // Call found(row) for those of the rows [begin, end) that sort before the previous row. Returns whether all are
  // finite.
  template <typename Found>
  bool each(int64_t begin, int64_t end, const Found& visit) {
    bool finite = true;
    if (begin == 0 && end > 0) finite = is_finite_row<D>(pos_ + begin++ * D);
    int32_t rises[KeyRises<D, T>::most];
    for (; begin < end; begin += KeyRises<D, T>::most) {
      const int64_t rows = std::min(end - begin, KeyRises<D, T>::most);
      const bool surely_finite = rises_.find(pos_ + begin * D, rows, rises);
      int32_t smallest_rise = 1;
      for (int64_t i = 0; i < rows; ++i) smallest_rise = std::min(smallest_rise, rises[i]);
      if (surely_finite && smallest_rise > 0) continue;
      for (int64_t i = 0; i < rows; ++i) {
        const T* x = pos_ + (begin + i) * D;
        finite &= surely_finite || is_finite_row<D>(x);
        if (rises[i] < 0 || (rises[i] == 0 && is_before<D>(grid_, x, x - D))) visit(begin + i);
      }
    }
    return finite;
  }

 private:
  const KeyGrid<D>& grid_;
  const T* pos_;
  KeyRises<D, T> rises_;
};

}  // namespace jztree
