// What all threads of a block look at.
#pragma once

#include <cstdint>

namespace jztree {

// A copy in shared memory, where it costs no registers; for all threads of the block. memory: sizeof(Setup) bytes.
template <typename Setup>
__device__ inline const Setup& share_setup(const Setup* setup, unsigned char* memory) {
  static_assert(sizeof(Setup) % sizeof(uint32_t) == 0, "it is copied word by word");
  for (unsigned i = threadIdx.x; i < sizeof(Setup) / sizeof(uint32_t); i += blockDim.x)
    reinterpret_cast<uint32_t*>(memory)[i] = reinterpret_cast<const uint32_t*>(setup)[i];
  __syncthreads();
  return *reinterpret_cast<const Setup*>(memory);
}

}  // namespace jztree
