// One pass, then one block that joins the results of the blocks.

#include <algorithm>
#include <cstdint>
#include <limits>

#include "bounds.h"
#include "common/cuda/context.cuh"
#include "common/cuda/keys.cuh"
#include "common/cuda/warp.cuh"
#include "common/scale.h"

namespace jztree {
namespace {

constexpr int block_threads = 256, most_blocks = 1024;

// The results of a thread, of a block, or of the whole grid.
template <int D, typename T>
struct Found {
  T low[D], high[D];
  int64_t first_bad, bad;  // the first row out of range, and the number of such rows

  __device__ void reset() {
    for (int d = 0; d < D; ++d) {
      low[d] = std::numeric_limits<T>::infinity();
      high[d] = -low[d];
    }
    first_bad = std::numeric_limits<int64_t>::max();
    bad = 0;
  }

  __device__ void include(const Found& other) {
    for (int d = 0; d < D; ++d) {
      low[d] = other.low[d] < low[d] ? other.low[d] : low[d];
      high[d] = other.high[d] > high[d] ? other.high[d] : high[d];
    }
    first_bad = other.first_bad < first_bad ? other.first_bad : first_bad;
    bad += other.bad;
  }

  // The union of the results of the block's threads; the first thread gets it.
  __device__ void reduce_block() {
    for (int d = 0; d < D; ++d) {
      low[d] = warp_min(low[d]);
      high[d] = warp_max(high[d]);
    }
    first_bad = warp_min(first_bad);
    bad = warp_sum(bad);
    alignas(16) __shared__ unsigned char memory[sizeof(Found) * (block_threads / warp_size)];
    Found* warps = reinterpret_cast<Found*>(memory);
    if (lane_index() == 0) warps[threadIdx.x / warp_size] = *this;
    __syncthreads();
    if (threadIdx.x == 0)
      for (int warp = 1; warp < block_threads / warp_size; ++warp) include(warps[warp]);
  }
};

template <int D, typename T>
__global__ void bounds_of_rows(const T* pos, Count num, Found<D, T>* found) {
  Found<D, T> mine;
  mine.reset();
  int64_t count = num(), step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t row = thread_index(); row < count; row += step) {
    const T* x = pos + row * D;
    if (!is_within_range<D>(x)) {
      if (mine.bad++ == 0) mine.first_bad = row;
      if (!is_finite_row<D>(x)) continue;
    }
    for (int d = 0; d < D; ++d) {
      mine.low[d] = x[d] < mine.low[d] ? x[d] : mine.low[d];
      mine.high[d] = x[d] > mine.high[d] ? x[d] : mine.high[d];
    }
  }
  mine.reduce_block();
  if (threadIdx.x == 0) found[blockIdx.x] = mine;
}

template <int D, typename T>
__global__ void bounds_of_blocks(const Found<D, T>* found, int blocks, T* lower, T* upper, int32_t* first_bad,
                                 int32_t* bad) {
  Found<D, T> mine;
  mine.reset();
  for (int block = static_cast<int>(threadIdx.x); block < blocks; block += block_threads) mine.include(found[block]);
  mine.reduce_block();
  if (threadIdx.x > 0) return;
  for (int d = 0; d < D; ++d) {
    lower[d] = mine.low[d];
    upper[d] = mine.high[d];
  }
  *first_bad = mine.bad > 0 ? static_cast<int32_t>(mine.first_bad) : -1;
  *bad = static_cast<int32_t>(mine.bad);
}

template <int D, typename T>
void bounds(Queue& queue, const BoundsOf<D, T>& in) {
  int64_t rows_a_block = 4 * block_threads;
  int blocks = static_cast<int>(
      std::max<int64_t>(1, std::min<int64_t>(most_blocks, (in.pos.rows() + rows_a_block - 1) / rows_a_block)));
  auto* bounds_found = queue.scratch<Found<D, T>>(blocks);
  queue.launch(blocks, block_threads, 0, bounds_of_rows<D, T>, in.pos, in.num, bounds_found);
  queue.launch(1, block_threads, 0, bounds_of_blocks<D, T>, bounds_found, blocks, in.lower, in.upper, in.first_bad,
               in.bad);
}

}  // namespace

JZTREE_KERNEL(bounds, BoundsOf);

}  // namespace jztree
