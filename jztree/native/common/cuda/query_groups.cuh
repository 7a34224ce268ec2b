// The number of queries that a warp answers, and the number of warps.
#pragma once

#include <algorithm>
#include <cstdint>

#include "queue.cuh"

namespace jztree {

// The number of multiprocessors of the GPU, or a few more.
__device__ inline int64_t multiprocessors() {
#ifdef __CUDA_ARCH__
  uint32_t number;
  asm("mov.u32 %0, %%nsmid;" : "=r"(number));
  return number;
#else
  return 2;  // so warps of the emulator answer 32 queries if a set has more than 512
#endif
}

// The number of consecutive queries that a warp answers together. The walk of a warp is long, so few queries take
// longest if their warps leave multiprocessors unused. Therefore a warp answers fewer queries if the GPU can run the
// warps at once. Queries that are few among many sources are far apart. A warp with 32 such queries visits most
// sources, so fewer queries per warp need less work in all, also if their warps run in several rounds.
constexpr int64_t far_warps = 64, near_warps = 16;  // per multiprocessor
constexpr int64_t most_narrow_warps = 8192;         // with fewer than 32 queries, on the largest GPUs
__device__ inline int queries_per_warp(int64_t queries, int64_t sources) {
  constexpr int64_t few = 8;  // times more sources
  int64_t warps = (queries > sources / few ? near_warps : far_warps) * multiprocessors();
  warps = warps < most_narrow_warps ? warps : most_narrow_warps;
  int width = warp_size;
  while (width > 1 && queries <= warps * width / 2) width /= 2;
  return width;
}

// The number of warps to launch for `rows` rows of queries, if warps of 32 queries each need `warps`.
inline int64_t warps_of_queries(int64_t rows, int64_t warps) {
  return std::max(warps, std::min<int64_t>(rows, most_narrow_warps));
}

}  // namespace jztree
