// Warps that each process a group of queries, a leaf of their hierarchy, 32 at a time, one per lane.
#pragma once

#include <cstdint>

#include "common/cuda/queue.cuh"
#include "common/cuda/share.cuh"
#include "common/cuda/warp.cuh"

namespace jztree {

constexpr int tile_threads = 64;

// One warp per leaf, with `warp_bytes` of shared memory.
template <typename... Parameters, typename... Arguments>
void launch_tiles(Queue& queue, int64_t leaves, int warp_bytes, void (*kernel)(Parameters...),
                  const Arguments&... arguments) {
  queue.launch_warps(leaves, warp_bytes, tile_threads, kernel, arguments...);
}

// In such a kernel: call work(setup, shared, tile, end) for each tile. Its queries are those from `tile` on and before
// `end`, one per lane. setup: a copy of in.setup for the block. shared: the warp's memory.
template <typename Problem, typename Work>
__device__ inline void each_query_tile(const Problem& in, int warp_bytes, const Work& work) {
  using Setup = typename Problem::Setup;
  alignas(16) __shared__ unsigned char memory[sizeof(Setup)];
  const Setup& setup = share_setup(in.setup, memory);
  int64_t leaf = thread_index() / warp_size;
  if (leaf >= in.queries.leaves()) return;
  unsigned char* shared = dynamic_shared() + static_cast<int>(threadIdx.x) / warp_size * warp_bytes;
  int64_t end = in.queries.leaf_row(leaf + 1);
  for (int64_t tile = in.queries.leaf_row(leaf); tile < end; tile += warp_size) work(setup, shared, tile, end);
}

}  // namespace jztree
