// Functions shared by the kernels on groups: counting members, and keys with as few bits as possible.
#pragma once

#include <cstdint>

#include "common/cuda/queue.cuh"
#include "common/cuda/warp.cuh"
#include "common/portable.h"

namespace jztree {

// counts[group] += 1 for the group of each lane, -1 for none. All lanes of the warp take part. Neighbouring rows are
// often in one group, even up to a group with every row, so a run of equal lanes adds once. Integer sums do not depend
// on the order of additions.
__device__ inline void count_members(int32_t* counts, int32_t group) {
  int32_t before = __shfl_up_sync(all_lanes, group, 1);
  int lane = lane_index();
  bool begins = lane == 0 || before != group;
  unsigned later = __ballot_sync(all_lanes, begins) & ~((2u << lane) - 1);
  if (!begins || group < 0) return;
  int end = later != 0 ? __ffs(static_cast<int>(later)) - 1 : warp_size;
  atomicAdd(&counts[group], end - lane);
}

}  // namespace jztree
