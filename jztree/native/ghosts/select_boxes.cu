#include <algorithm>
#include <cstdint>

#include "block_boxes.cuh"
#include "common/cuda/context.cuh"
#include "common/cuda/primitives.cuh"
#include "select_boxes.h"

namespace jztree {
namespace {

template <int D, typename T>
struct BoxSelection {
  Lengths box;
  Boxes<D, T> own, known;
  const T* radius;
  const int32_t *known_counts, *me;
  int64_t ranks, per_rank;
  bool higher_only;

  __device__ bool must_know(const Space<D>& space, int64_t rank, int64_t i) const {
    if (i >= own.count || !(radius[i] >= 0) || own.empty(i)) return false;
    double limit = space.enlarged(radius[i]);
    for (int64_t s = rank * per_rank; s < (rank + 1) * per_rank; ++s)
      if (known_counts[s] > 0 && space.gap2(own.low(i), own.high(i), known.low(s), known.high(s)) <= limit * limit)
        return true;
    return false;
  }

  // Call work(i, lanes) in all lanes of a warp. Each lane has a different box i; `lanes` marks the boxes that the rank
  // must receive.
  template <typename Work>
  __device__ void each_box(int64_t rank, const Work& work) const {
    if (rank == me[0] || (higher_only && rank < me[0])) return;
    Space<D> space = space_in<D, T>(box);
    for (int64_t first = 0; first < own.count; first += warp_size) {
      int64_t i = first + lane_index();
      work(i, __ballot_sync(all_lanes, must_know(space, rank, i)));
    }
  }
};

// One warp per rank.
template <int D, typename T>
__global__ void count_boxes(BoxSelection<D, T> selection, int64_t* counts) {
  int64_t rank = thread_index() / warp_size, count = 0;
  if (rank >= selection.ranks) return;
  selection.each_box(rank, [&](int64_t, unsigned lanes) { count += __popc(lanes); });
  if (lane_index() == 0) counts[rank] = count;
}

// Repeat the tests for the ranks that must receive some boxes. starts: the first entry of each rank in `order`,
// followed by the end.
template <int D, typename T>
__global__ void list_boxes(BoxSelection<D, T> selection, const int64_t* starts, int64_t room, int32_t* order,
                           int32_t* counts) {
  int64_t rank = thread_index() / warp_size;
  if (rank >= selection.ranks) return;
  int64_t next = starts[rank], end = starts[rank + 1];
  if (lane_index() == 0) counts[rank] = static_cast<int32_t>(end - next);
  if (next == end) return;
  selection.each_box(rank, [&](int64_t i, unsigned lanes) {
    int64_t place = next + __popc(lanes & ((1u << lane_index()) - 1));
    if ((lanes >> lane_index() & 1) && place < room) order[place] = static_cast<int32_t>(i);
    next += __popc(lanes);
  });
}

__global__ void end_boxes(const int64_t* end, int64_t room, int32_t* order) {
  int64_t i = thread_index();
  if (i < room && i >= *end) order[i] = -1;
}

template <int D, typename T>
void select_boxes(Queue& queue, const SelectBoxes<D, T>& in) {
  int64_t ranks = in.known.ranks, room = in.order.rows();
  BoxSelection<D, T> selection{in.box,  in.own, in.known,          in.radius,     in.known_counts,
                               in.rank, ranks,  in.known.per_rank, in.higher_only};
  auto* starts = queue.scratch<int64_t>(ranks + 1);
  queue.fill_bytes(starts, 0, ranks + 1);
  queue.launch_warps(ranks, count_boxes<D, T>, selection, starts);
  exclusive_sum(queue, starts, starts, ranks + 1);
  queue.launch_warps(ranks, list_boxes<D, T>, selection, starts, room, in.order, in.counts);
  queue.launch_over(room, end_boxes, starts + ranks, room, in.order);
}

}  // namespace

JZTREE_KERNEL(select_boxes, SelectBoxes);

}  // namespace jztree
