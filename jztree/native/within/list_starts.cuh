// Lists of any length, one for each output row, one after the other.
#pragma once

#include <cstdint>
#include <limits>

#include "common/cuda/primitives.cuh"
#include "common/cuda/queue.cuh"

namespace jztree {

struct ListStarts {
  int64_t* starts;  // (q + 1,), of output rows; at first, the length of each list
  int64_t room, q;

  __device__ int64_t total() const { return starts[q]; }
  // Lists that do not fit are not written.
  __device__ bool fit() const { return total() <= room; }
};

// total: upper and lower 31 bits.
static __global__ void write_splits(ListStarts lists, int32_t* splits, int32_t* total) {
  constexpr int64_t limit = std::numeric_limits<int32_t>::max();
  int64_t row = thread_index();
  if (row > lists.q) return;
  splits[row] = static_cast<int32_t>(lists.starts[row] < limit ? lists.starts[row] : limit);
  if (row < lists.q) return;
  total[0] = static_cast<int32_t>(lists.total() >> 31);
  total[1] = static_cast<int32_t>(lists.total() & limit);
}

// Lay out the lists of `in`. In: has splits, total, q() and room(). count(lists): writes the length of each list to
// `starts`, unless the length is 0.
template <typename In, typename Count>
ListStarts lay_out_lists(Queue& queue, const In& in, const Count& count) {
  ListStarts lists{queue.scratch<int64_t>(in.q() + 1), in.room(), in.q()};
  queue.fill_bytes(lists.starts, 0, in.q() + 1);
  count(lists);
  exclusive_sum(queue, lists.starts, lists.starts, in.q() + 1);
  queue.launch_over(in.q() + 1, write_splits, lists, in.splits, in.total);
  return lists;
}

}  // namespace jztree
