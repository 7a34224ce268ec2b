// Operations that the 32 lanes of a warp compute together. All lanes of the warp take part.
#pragma once

#include <cstdint>

#include "queue.cuh"

namespace jztree {

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) & (warp_size - 1); }

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
