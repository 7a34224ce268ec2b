// The differences between the compilers that process the common headers.
#pragma once

#include <cstdint>

// Functions that run on the host and, in CUDA sources, also on the GPU.
#ifdef __CUDACC__
#define JZTREE_BOTH __host__ __device__
// The same, never inlined.
#define JZTREE_APART __host__ __device__ __noinline__
#else
#define JZTREE_BOTH
#define JZTREE_APART __attribute__((noinline))
#endif
// CPU functions that are always inlined.
#define JZTREE_INLINE __attribute__((always_inline))

namespace jztree {

// For non-zero numbers.
JZTREE_BOTH inline int leading_zeros(uint64_t x) {
#ifdef __CUDA_ARCH__
  return __clzll(static_cast<long long>(x));
#else
  return __builtin_clzll(x);
#endif
}

}  // namespace jztree
