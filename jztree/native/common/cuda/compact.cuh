// Lists chosen rows in order. Each block counts the chosen rows of its tile. A scan over the tiles gives each block the
// position of its rows in the list. So every row is read and written only once.
#pragma once

#include <cstdint>

#include "queue.cuh"
#include "warp.cuh"

namespace jztree {

constexpr int compact_threads = 256, compact_items = 4, compact_rows = compact_threads * compact_items;

// Tiles of `rows` rows.
inline int64_t compact_tiles(int64_t rows) { return (rows + compact_rows - 1) / compact_rows; }

// Item number `item` of this thread in the block's tile. Lanes of a warp have neighbouring rows.
__device__ inline int64_t compact_row(int64_t tile, int item) {
  return tile * compact_rows + item * compact_threads + static_cast<int>(threadIdx.x);
}

// The number of chosen rows in the tile; places: positions of this thread's rows among them. chosen: one bit per item.
// All threads of the block take part.
__device__ inline int compact_places(unsigned chosen, int (&places)[compact_items]) {
  constexpr int warps = compact_threads / warp_size;
  static_assert(compact_items * warps == warp_size, "one warp adds up the counts of every warp");
  __shared__ int before[warp_size + 1];
  int lane = lane_index(), warp = static_cast<int>(threadIdx.x) / warp_size;
  for (int item = 0; item < compact_items; ++item) {
    unsigned lanes = __ballot_sync(all_lanes, chosen >> item & 1);
    places[item] = __popc(lanes & ((1u << lane) - 1));
    if (lane == 0) before[item * warps + warp + 1] = __popc(lanes);
  }
  __syncthreads();
  if (warp == 0) {
    int sum = warp_inclusive_sum(before[lane + 1]);
    before[lane + 1] = sum;
    if (lane == 0) before[0] = 0;
  }
  __syncthreads();
  for (int item = 0; item < compact_items; ++item) places[item] += before[item * warps + warp];
  int total = before[warp_size];
  __syncthreads();  // before the next call writes
  return total;
}

}  // namespace jztree
