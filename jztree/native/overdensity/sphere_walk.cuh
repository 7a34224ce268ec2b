// Finds the particles in a shell around a centre, by a walk of a block from the top plane.
//
// The walk keeps a stack of ranges of nodes or rows that are still to be tested. In every round each thread tests one
// item of the topmost ranges, regardless of their sizes. Each item that may be near leaves its children on the stack as
// a new range. At most one range per thread and plane is ever left on the stack, because the new ranges are one plane
// below the tested items. With one warp, the assignment of rows to threads is the same in every run.
#pragma once

#include <cstdint>

#include "common/cuda/queue.cuh"
#include "common/cuda/tree.cuh"
#include "common/cuda/warp.cuh"
#include "spheres.h"

namespace jztree {

// Nodes of a plane, or rows.
struct Span {
  int32_t begin, end, plane;

  static constexpr int rows = -1;  // used instead of a plane
};

// The stack size of a block with this number of threads.
JZTREE_BOTH inline int64_t span_stack(int threads, int planes) { return threads * (int64_t{planes} + 1) + 1; }

// Reserve a place, after `count` others, for each lane that wants one. All lanes of the warp take part.
__device__ inline int place_in(int* count, bool lane_wants) {
  unsigned lanes = __ballot_sync(all_lanes, lane_wants);
  int first = 0;
  if (lanes != 0 && lane_index() == 0) first = atomicAdd(count, __popc(lanes));
  return __shfl_sync(all_lanes, first, 0) + __popc(lanes & ((1u << lane_index()) - 1));
}

template <int Threads>
struct WalkMemory {
  int until[Threads], sums[Threads / warp_size + 1];
  int size;  // of the stack
};

template <int D, typename T, int Threads>
class ShellWalk {
 public:
  // stack: belongs to the block; see `span_stack`.
  __device__ ShellWalk(const DeviceTree<D, T>& tree, WalkMemory<Threads>& memory, Span* stack)
      : tree_(tree), memory_(memory), stack_(stack) {}

  // Call visit(row) in every thread of the block together, for the rows of the nodes that reach into the shell. Threads
  // without a row call visit(-1). The threads synchronise between the previous walk and this call, and again before it
  // returns.
  template <typename Visit>
  __device__ void rows(const Centre<D, T>& centre, double inner, double outer, const Visit& visit) {
    if (threadIdx.x == 0) {
      memory_.size = 1;
      int top = tree_.planes - 1;
      stack_[0] = {static_cast<int32_t>(tree_.starts[top]), static_cast<int32_t>(tree_.starts[top + 1]), top};
    }
    __syncthreads();
    double gap2_limit = centre.gap2_within(outer);
    while (memory_.size > 0) {
      Span item = next_item();
      bool opens = false;
      int64_t row = -1;
      if (item.begin == item.end) {
      } else if (item.plane == Span::rows) {
        row = item.begin;
      } else {
        opens = open(centre, gap2_limit, inner, &item);
      }
      int place = place_in(&memory_.size, opens);
      if (opens) stack_[place] = item;
      visit(row);
      __syncthreads();
    }
  }

 private:
  // Replace a node by its children or rows, if they may be in the shell.
  __device__ bool open(const Centre<D, T>& centre, double gap2_limit, double inner, Span* item) const {
    int64_t node = item->begin;
    int plane = item->plane;
    const T *lower = tree_.lower + node * D, *upper = tree_.upper + node * D;
    int64_t first = tree_.first_row(plane, node), last = tree_.first_row(plane, node + 1);
    if (first == last || centre.gap2(lower, upper) > gap2_limit || centre.reach(lower, upper) < inner) return false;
    if (plane > 0) {
      first = tree_.first_child(plane, node);
      last = tree_.first_child(plane, node + 1);
    }
    *item = {static_cast<int32_t>(first), static_cast<int32_t>(last), plane - 1};
    return true;
  }

  // Take items from the top of the stack, one per thread; threads without an item get an empty span.
  __device__ Span next_item() {
    int entry = memory_.size - 1 - static_cast<int>(threadIdx.x);
    Span mine{};
    if (entry >= 0) mine = stack_[entry];
    int length = smaller(mine.end - mine.begin, Threads), until = block_inclusive_sum(length);
    memory_.until[threadIdx.x] = until;
    __syncthreads();
    Span item{};
    if (static_cast<int>(threadIdx.x) < memory_.until[Threads - 1]) {
      int span = span_of(static_cast<int>(threadIdx.x)), before = span > 0 ? memory_.until[span - 1] : 0;
      item = stack_[memory_.size - 1 - span];
      item.begin += static_cast<int>(threadIdx.x) - before;
      item.end = item.begin + 1;
    }
    __syncthreads();
    int items = smaller(length, Threads - (until - length));
    if (entry >= 0 && items >= 0) {
      if (items == mine.end - mine.begin) {
        atomicMin(&memory_.size, entry);
      } else {
        stack_[entry].begin += items;
      }
    }
    __syncthreads();
    return item;
  }

  // The first span from the top of the stack that ends after an item.
  __device__ int span_of(int item) const {
    int first = 0, last = Threads - 1;
    while (first < last) {
      int middle = (first + last) / 2;
      if (memory_.until[middle] > item) {
        last = middle;
      } else {
        first = middle + 1;
      }
    }
    return first;
  }

  // The sum over this thread and the threads before it.
  __device__ int block_inclusive_sum(int value) {
    value = warp_inclusive_sum(value);
    if constexpr (Threads > warp_size) {
      int warp = static_cast<int>(threadIdx.x) / warp_size;
      if (lane_index() == warp_size - 1) memory_.sums[warp] = value;
      __syncthreads();
      for (int before = 0; before < warp; ++before) value += memory_.sums[before];
    }
    return value;
  }

  const DeviceTree<D, T>& tree_;
  WalkMemory<Threads>& memory_;
  Span* stack_;
};

}  // namespace jztree
