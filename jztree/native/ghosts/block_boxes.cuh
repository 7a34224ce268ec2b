// Operations of a block of threads on boxes.
//
// A block takes particles that are neighbours in z-order. It tests the boxes of every rank against the single box
// around its particles, one box per thread. The remaining boxes, usually few or none, are tested against each particle
// or leaf, one per thread. The first test never drops a box that the second would keep, because the distance to a
// larger box is never larger, even after rounding. All threads of a block read the same boxes in every loop, so lanes
// stay together and loads are broadcast.
#pragma once

#include <cstdint>

#include "boxes.h"
#include "common/cuda/queue.cuh"
#include "common/cuda/surrounding.cuh"
#include "common/cuda/warp.cuh"
#include "common/space.h"

namespace jztree {

template <int D, typename T>
__device__ Space<D> space_in(const Lengths& box) {
  double period[D];
  for (int d = 0; d < D; ++d) period[d] = box[d];
  return Space<D>(period, T{});
}

// A short list that the threads of a block write together, in any order.
template <int Room>
struct BlockList {
  int32_t entries[Room];
  int count;

  // All threads of the block call the following functions.
  __device__ void clear() {
    __syncthreads();
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
  }
  __device__ void complete() { __syncthreads(); }

  __device__ void add(int64_t entry) { entries[atomicAdd(&count, 1)] = static_cast<int32_t>(entry); }
};

}  // namespace jztree
