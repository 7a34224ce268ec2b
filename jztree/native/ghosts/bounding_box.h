// What the CPU's kernels of ghosts ask about boxes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "boxes.h"

namespace jztree {

inline bool within(double gap2, double radius) { return gap2 <= radius * radius; }

template <int D, typename T>
void bounding_box(const Boxes<D, T>& boxes, int64_t begin, int64_t end, T* low, T* high) {
  std::fill(low, low + D, std::numeric_limits<T>::infinity());
  std::fill(high, high + D, -std::numeric_limits<T>::infinity());
  for (int64_t i = begin; i < end; ++i)
    for (int d = 0; d < D; ++d) {
      low[d] = std::min(low[d], boxes.low(i)[d]);
      high[d] = std::max(high[d], boxes.high(i)[d]);
    }
}

}  // namespace jztree
