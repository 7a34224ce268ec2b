// A box around points or boxes that the threads of a warp or of a block hold.
#pragma once

#include <cstdint>
#include <limits>

#include "common/periodic.h"
#include "queue.cuh"
#include "warp.cuh"

namespace jztree {

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

// A box around the boxes or points of several threads.
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

  __device__ void include(const Surrounding& other) { include(other.low, other.high); }

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

// The box around the wrapped rows [begin, end). Run by one warp, whose lanes read consecutive rows. period: indexed by
// dimension.
template <int D, typename T, typename Period>
__device__ Surrounding<D, T> box_of_rows(const T* pos, int64_t begin, int64_t end, const Period& period) {
  Surrounding<D, T> box;
  for (int64_t row = begin + lane_index(); row < end; row += warp_size) {
    T x[D];
    for (int d = 0; d < D; ++d) x[d] = wrap(pos[row * D + d], period[d]);
    box.include(x, x);
  }
  box.unite_warp();
  return box;
}

}  // namespace jztree
