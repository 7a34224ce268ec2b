// What a block of threads finds out about boxes together.
//
// A block takes particles that are neighbours in z-order. It tests the boxes of all ranks against the one box around
// its particles, a box a thread, and only what is left of them, mostly little or nothing, against each particle or
// leaf, one a thread. That leaves nothing out either: a distance is never larger for a larger box, rounding included.
// All loops are over boxes that all threads of a block look at together, so lanes stay together and loads are
// broadcast.
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

// The largest of what all threads of a block have.
template <typename T, int Threads>
__device__ T block_max(T value) {
  constexpr int warps = Threads / warp_size;
  __shared__ T found[warps];
  value = warp_max(value);
  __syncthreads();  // whatever was read of the call before
  if (lane_index() == 0) found[threadIdx.x / warp_size] = value;
  __syncthreads();
  for (int warp = 0; warp < warps; ++warp) value = found[warp] > value ? found[warp] : value;
  return value;
}

// A box around what the threads of a block have.
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

// A short list that the threads of a block write together, in no order that matters.
template <int Room>
struct BlockList {
  int32_t entries[Room];
  int count;

  // All threads of the block call these.
  __device__ void clear() {
    __syncthreads();
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
  }
  __device__ void complete() { __syncthreads(); }

  __device__ void add(int64_t entry) { entries[atomicAdd(&count, 1)] = static_cast<int32_t>(entry); }
};

}  // namespace jztree
