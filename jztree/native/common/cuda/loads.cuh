// Reads and writes of words that other threads of the device may write at the same time.
#pragma once

#include <cstdint>

namespace jztree {

// These loads see the writes of every multiprocessor. They have no order relative to other accesses, and each makes one
// memory access. A volatile access does more: it is ordered relative to other volatile accesses and is visible outside
// the device.
__device__ inline int32_t load_relaxed(const int32_t* at) {
#ifdef __CUDA_ARCH__
  int32_t value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
#else
  return *static_cast<const volatile int32_t*>(at);
#endif
}

__device__ inline uint64_t load_relaxed(const uint64_t* at) {
#ifdef __CUDA_ARCH__
  uint64_t value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
#else
  return *static_cast<const volatile uint64_t*>(at);
#endif
}

// A value that the word had at some time in this launch: a multiprocessor may read it from its own cache, without later
// writes of others. A plain read that may race.
__device__ inline int32_t load_outdated(const int32_t* at) {
#ifdef __CUDA_ARCH__
  return *at;
#else
  return load_relaxed(at);
#endif
}

__device__ inline void store_relaxed(int32_t* at, int32_t value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
#else
  *static_cast<volatile int32_t*>(at) = value;
#endif
}

__device__ inline void store_relaxed(uint64_t* at, uint64_t value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
#else
  *static_cast<volatile uint64_t*>(at) = value;
#endif
}

// Lower a word that other threads of the launch lower too. The read usually avoids the atomic operation.
__device__ inline void lower(uint64_t* place, uint64_t value) {
  if (value < load_relaxed(place)) atomicMin(reinterpret_cast<unsigned long long*>(place), value);
}

}  // namespace jztree
