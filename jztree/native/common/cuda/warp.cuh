// Operations that the 32 lanes of a warp compute together. All lanes of the warp take part.
#pragma once

#include <algorithm>
#include <cstdint>

#include "queue.cuh"

namespace jztree {

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) & (warp_size - 1); }

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

template <typename T, typename Combine>
__device__ inline T warp_reduce(T value, const Combine& combine) {
  for (int flip = warp_size / 2; flip > 0; flip /= 2) value = combine(value, __shfl_xor_sync(all_lanes, value, flip));
  return value;
}

template <typename T>
__device__ inline T warp_min(T value) {
  return warp_reduce(value, [](T a, T b) { return b < a ? b : a; });
}

template <typename T>
__device__ inline T warp_max(T value) {
  return warp_reduce(value, [](T a, T b) { return a < b ? b : a; });
}

template <typename T>
__device__ inline T warp_sum(T value) {
  return warp_reduce(value, [](T a, T b) { return a + b; });
}

// For words, with a single instruction from compute capability 8.0 on.
__device__ __forceinline__ unsigned warp_min_word(unsigned value) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  return __reduce_min_sync(all_lanes, value);
#else
  return warp_min(value);
#endif
}

__device__ __forceinline__ unsigned warp_max_word(unsigned value) { return ~warp_min_word(~value); }

// The sum over this lane and the lanes before it.
template <typename T>
__device__ inline T warp_inclusive_sum(T value) {
  for (int by = 1; by < warp_size; by *= 2) {
    T other = __shfl_up_sync(all_lanes, value, by);
    if (lane_index() >= by) value += other;
  }
  return value;
}

}  // namespace jztree
