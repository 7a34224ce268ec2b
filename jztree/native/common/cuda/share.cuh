// Data that all threads of a block share.
#pragma once

#include <cstdint>

#include "queue.cuh"
#include "warp.cuh"

namespace jztree {

// Run by one warp. It writes the padding between members too, because `share_setup` reads whole words.
template <typename Setup, typename... Given>
__global__ void write_setup(Setup* setup, Given... given) {
  const Setup made(given...);
  for (unsigned i = lane_index(); i < sizeof(Setup) / sizeof(uint32_t); i += warp_size)
    reinterpret_cast<uint32_t*>(setup)[i] = 0;
  __syncwarp();
  if (lane_index() == 0) *setup = made;
}

// Setup(given...), constructed on the GPU from numbers that are stored there, by one warp.
template <typename Setup, typename... Given>
const Setup* make_setup(Queue& queue, const Given&... given) {
  auto* setup = queue.scratch<Setup>(1);
  queue.launch(1, warp_size, 0, write_setup<Setup, Given...>, setup, given...);
  return setup;
}

// A copy in shared memory, which needs no registers; called by all threads of the block. memory: sizeof(Setup) bytes.
template <typename Setup>
__device__ inline const Setup& share_setup(const Setup* setup, unsigned char* memory) {
  static_assert(sizeof(Setup) % sizeof(uint32_t) == 0, "it is copied word by word");
  static_assert(sizeof(Setup) <= most_declared_shared, "a launch assumes less");
  for (unsigned i = threadIdx.x; i < sizeof(Setup) / sizeof(uint32_t); i += blockDim.x)
    reinterpret_cast<uint32_t*>(memory)[i] = reinterpret_cast<const uint32_t*>(setup)[i];
  __syncthreads();
  return *reinterpret_cast<const Setup*>(memory);
}

}  // namespace jztree
