// The number of queries that a warp answers, and the number of warps.
#pragma once

#include <algorithm>
#include <cstdint>

#include "queue.cuh"

namespace jztree {

// The number of consecutive queries that a warp answers together. Few queries among many sources are far apart: a warp
// with 32 queries would visit most sources, and most multiprocessors would have no warp.
constexpr int64_t busy_warps = 1024;
__device__ inline int queries_per_warp(int64_t queries, int64_t sources) {
  constexpr int64_t few = 8;  // times more sources
  int width = warp_size;
  if (queries > sources / few) return width;
  while (width > 1 && queries <= busy_warps * width / 2) width /= 2;
  return width;
}

// The number of warps to launch for `rows` rows of queries, if warps of 32 queries each need `warps`.
inline int64_t warps_of_queries(int64_t rows, int64_t warps) {
  return std::max(warps, std::min<int64_t>(rows, busy_warps));
}

}  // namespace jztree
