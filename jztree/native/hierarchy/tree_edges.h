// Edges of a spanning tree as arguments of kernels.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/portable.h"

namespace jztree {

// The length of an edge in float64. exact: low and high word of each length.
JZTREE_BOTH inline double exact_length(const uint32_t* exact, int64_t edge) {
  const uint64_t bits = uint64_t{exact[2 * edge + 1]} << 32 | exact[2 * edge];
  double length;
  memcpy(&length, &bits, sizeof(length));
  return length;
}

// Whether the ends of an edge are among n rows.
JZTREE_BOTH inline bool has_rows(const int32_t* ends, int64_t edge, int64_t n) {
  const int32_t a = ends[2 * edge], b = ends[2 * edge + 1];
  return a >= 0 && a < n && b >= 0 && b < n;
}

}  // namespace jztree
