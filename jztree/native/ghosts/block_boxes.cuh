// Operations of a block of threads on boxes.
//
// A block takes particles that are neighbours in z-order. It tests the boxes of every rank against the single box
// around its particles, one box per thread. The remaining boxes, usually few or none, are tested against each particle
// or leaf, one per thread. The first test never drops a box that the second would keep, because the distance to a
// larger box is never larger, even after rounding. All threads of a block read the same boxes in every loop, so lanes
// stay together and loads are broadcast.
#pragma once

#include <cstdint>
#include <limits>

#include "boxes.h"
#include "common/cuda/queue.cuh"
#include "common/cuda/warp.cuh"
#include "common/space.h"

namespace jztree {

template <int D, typename T>
__device__ Space<D> space_in(const Lengths& box) {
  double period[D];
  for (int d = 0; d < D; ++d) period[d] = box[d];
  return Space<D>(period, T{});
}

// The maximum over all threads of a block.
template <typename T, int Threads>
__device__ T block_max(T value) {
  constexpr int warps = Threads / warp_size;
  __shared__ T found[warps];
  value = warp_max(value);
  __syncthreads();  // all reads of the previous call are done
  if (lane_index() == 0) found[threadIdx.x / warp_size] = value;
  __syncthreads();
  for (int warp = 0; warp < warps; ++warp) value = found[warp] > value ? found[warp] : value;
  return value;
}

// A box around the boxes or points of a block's threads.
template <int D, typename T>
struct Surrounding {
  T low[D], high[D];

  __device__ Surrounding() {
    for (int d = 0; d < D; ++d) {
      low[d] = std::numeric_limits<T>::infinity();
      high[d] = -low[d];
    }
  }

  __device__ void include(const T* lower, const T* upper) {
    for (int d = 0; d < D; ++d) {
      low[d] = lower[d] < low[d] ? lower[d] : low[d];
      high[d] = upper[d] > high[d] ? upper[d] : high[d];
    }
  }

  __device__ bool empty() const { return !(low[0] <= high[0]); }

  __device__ void unite_warp() {
    for (int d = 0; d < D; ++d) {
      low[d] = warp_min(low[d]);
      high[d] = warp_max(high[d]);
    }
  }

  template <int Threads>
  __device__ void unite_block() {
    for (int d = 0; d < D; ++d) {
      high[d] = block_max<T, Threads>(high[d]);
      low[d] = -block_max<T, Threads>(-low[d]);
    }
  }
};

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
