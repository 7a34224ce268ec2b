// Selects the next range of rows to split, so that a few boxes cover the rows closely.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/portable.h"

namespace jztree {

// The cube root of a number of rows, with the same bits on every machine, which no mathematical library guarantees.
// Newton's method from above; from any start within a factor of 2, seven steps give all digits. Root(8 x) is exactly 2
// root(x).
JZTREE_BOTH inline double cube_root(int64_t rows) {
  if (rows <= 0) return 0;
  double x = static_cast<double>(rows), root = 1;
  for (double cube = 1; cube < x; cube *= 8) root *= 2;
  for (int step = 0; step < 7; ++step) root = (2 * root + x / (root * root)) / 3;
  return root;
}

// Ranges with the longest boxes and the most rows come first. A part of a range never has a higher priority.
JZTREE_BOTH inline double cover_priority(double longest, int64_t rows) { return longest * cube_root(rows); }

}  // namespace jztree
