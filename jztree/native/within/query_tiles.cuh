// Warps that each process a group of queries, a leaf of their hierarchy, 32 at a time, one per lane; or fewer queries
// if there are few among many sources.
#pragma once

#include <cstdint>

#include "common/cuda/query_groups.cuh"
#include "common/cuda/queue.cuh"
#include "common/cuda/share.cuh"
#include "common/cuda/warp.cuh"

namespace jztree {

constexpr int tile_threads = 64;

// A launch for the queries of `problem`, with `warp_bytes` of shared memory per warp.
template <typename Problem, typename... Parameters, typename... Arguments>
void launch_tiles(Queue& queue, const Problem& problem, int warp_bytes, void (*kernel)(Parameters...),
                  const Arguments&... arguments) {
  int64_t warps = warps_of_queries(problem.queries.num.rows, problem.queries.leaves());
  queue.launch_warps(warps, warp_bytes, tile_threads, kernel, problem, arguments...);
}

// In such a kernel: call work(setup, shared, tile, end) for each tile. Its queries are those from `tile` on and before
// `end`, one per lane. setup: a copy of in.setup for the block. shared: the warp's memory.
template <typename Problem, typename Work>
__device__ inline void each_query_tile(const Problem& in, int warp_bytes, const Work& work) {
  using Setup = typename Problem::Setup;
  // Several warps share a leaf. Tiles do not cross from leaf to leaf, because leaves may be far apart.
  int width = queries_per_warp(in.queries.num(), in.sources.num()), sharers = warp_size / width;
  int64_t items = in.queries.leaves() * sharers, warps_a_block = blockDim.x / warp_size;
  if (blockIdx.x * warps_a_block >= items) return;  // before it reads the setup: there may be more warps than tiles
  alignas(16) __shared__ unsigned char memory[sizeof(Setup)];
  const Setup& setup = share_setup(in.setup, memory);
  int64_t warp = thread_index() / warp_size, warps = gridDim.x * warps_a_block;
  unsigned char* shared = dynamic_shared() + static_cast<int>(threadIdx.x) / warp_size * warp_bytes;
  for (int64_t item = warp; item < items; item += warps) {
    int64_t leaf = item / sharers, end = in.queries.leaf_row(leaf + 1);
    for (int64_t tile = in.queries.leaf_row(leaf) + item % sharers * width; tile < end; tile += warp_size)
      work(setup, shared, tile, end < tile + width ? end : tile + width);
  }
}

}  // namespace jztree
