#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/surrounding.cuh"
#include "row_boxes.h"

namespace jztree {
namespace {

// One warp per run.
template <int D, typename T>
__global__ void find_boxes(const T* pos, Count num, Lengths box, RunsOfRows rows_of, int64_t runs, int32_t* splits,
                           T* lower, T* upper) {
  int64_t run = thread_index() / warp_size;
  if (run >= runs) return;
  int64_t begin = rows_of.begin(run, num()), end = rows_of.begin(run + 1, num());
  const Surrounding<D, T> around = box_of_rows<D>(pos, begin, end, box);
  if (lane_index() != 0) return;
  splits[run] = static_cast<int32_t>(begin);
  if (run == runs - 1) splits[runs] = static_cast<int32_t>(num());
  for (int d = 0; d < D; ++d) {
    lower[run * D + d] = around.low[d];
    upper[run * D + d] = around.high[d];
  }
}

template <int D, typename T>
void row_boxes(Queue& queue, const RowBoxes<D, T>& in) {
  queue.launch_warps(in.runs(), find_boxes<D, T>, in.pos.data, in.num, in.box, in.rows_of, in.runs(), in.splits.data,
                     in.lower, in.upper);
}

}  // namespace

JZTREE_KERNEL(row_boxes, RowBoxes);

}  // namespace jztree
