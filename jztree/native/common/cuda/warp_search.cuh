// A search by the 32 lanes of a warp, which test 32 places at once: this takes a fifth of the steps of a binary search,
// and each step waits for memory.
#pragma once

#include <cstdint>

#include "queue.cuh"
#include "warp.cuh"

namespace jztree {

// The first place in [first, last) for which `before` is false; last if there is none. `before` must be true for all
// places before one for which it is true. All lanes of the warp take part, with the same range.
template <typename Before>
__device__ int64_t warp_search(int64_t first, int64_t last, const Before& before) {
  while (first < last) {
    int64_t width = last - first;
    unsigned after = __ballot_sync(all_lanes, !before(first + width * lane_index() / warp_size));
    int lane = after != 0 ? __ffs(static_cast<int>(after)) - 1 : warp_size;
    if (lane < warp_size) last = first + width * lane / warp_size;
    if (lane > 0) first += width * (lane - 1) / warp_size + 1;
  }
  return first;
}

}  // namespace jztree
