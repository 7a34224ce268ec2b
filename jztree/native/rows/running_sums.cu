// A warp sums a list, 32 entries at a time.

#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/warp.cuh"
#include "running_sums.h"

namespace jztree {
namespace {

template <typename T>
__global__ void sum_lists(const T* values, const int32_t* splits, T* sums, int64_t entries, int64_t lists) {
  const int64_t list = thread_index() / warp_size;
  if (list >= lists) return;
  auto place = [&](int64_t i) { return splits[i] < 0 ? 0 : splits[i] < entries ? int64_t{splits[i]} : entries; };
  const int64_t end = place(list + 1);
  double before = 0;
  for (int64_t first = place(list); first < end; first += warp_size) {
    const int64_t i = first + lane_index();
    const double sum = before + warp_inclusive_sum(i < end ? static_cast<double>(values[i]) : 0.);
    if (i < end) sums[i] = static_cast<T>(sum);
    before = __shfl_sync(all_lanes, sum, warp_size - 1);
  }
}

void running_sums(Queue& queue, const RunningSums& in) {
  in.with_type([&](auto zero) {
    using T = decltype(zero);
    T* sums = static_cast<T*>(in.sums.data);
    queue.fill_bytes(sums, 0, in.entries());
    queue.launch_warps(in.lists(), sum_lists<T>, static_cast<const T*>(in.values.data), in.splits, sums, in.entries(),
                       in.lists());
  });
}

}  // namespace

JZTREE_PLAIN_KERNEL(running_sums, RunningSums);

}  // namespace jztree
