// Reads and writes of words that other threads of the device write meanwhile.
#pragma once

#include <cstdint>

namespace jztree {

// They see what any multiprocessor has written, in no order with what else is read and written, and are one access to
// memory each. A volatile access is more than that: it orders itself with others and looks beyond the device.
__device__ inline int32_t load_relaxed(const int32_t* at) {
#ifdef __CUDA_ARCH__
  int32_t value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
#else
  return *static_cast<const volatile int32_t*>(at);
#endif
}

// What a word held at some time in this launch: a multiprocessor may have it in its own cache, where others do not see
// it. A plain read, and said to race.
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

}  // namespace jztree
