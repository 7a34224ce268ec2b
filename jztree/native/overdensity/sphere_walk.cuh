// The particles in a shell around a centre, by a walk of a block from the top plane.
//
// The walk keeps a stack of ranges of nodes, or of rows, that are still to be looked at. In every round each thread
// looks at one item of the ranges on top, whatever their sizes, and what may be near leaves a range of its own on the
// stack. No more than one range a thread and plane is ever left behind, because those of a round lie below what was
// looked at. With one warp, which thread looks at which row is the same in every run.
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

  static constexpr int rows = -1;  // in place of a plane
};

// The stack of a block with so many threads.
JZTREE_BOTH inline int64_t span_stack(int threads, int planes) { return threads * (int64_t{planes} + 1) + 1; }

// Where a lane that wants a place gets it, behind `count` others. All lanes of the warp take part.
__device__ inline int place_in(int* count, bool wanted) {
  unsigned lanes = __ballot_sync(all_lanes, wanted);
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
  // stack: of the block, see `span_stack`.
  __device__ ShellWalk(const DeviceTree<D, T>& tree, WalkMemory<Threads>& memory, Span* stack)
      : tree_(tree), memory_(memory), stack_(stack) {}

  // Calls visit(row) in every thread of the block together, with the rows of all nodes that reach into the shell, and
  // -1 where a thread has none. Before it the threads have met since the walk before; after it they have met.
  template <typename Visit>
  __device__ void rows(const Centre<D, T>& centre, double inner, double outer, const Visit& visit) {
    if (threadIdx.x == 0) {
      memory_.size = 1;
      int top = tree_.planes - 1;
      stack_[0] = {static_cast<int32_t>(tree_.starts[top]), static_cast<int32_t>(tree_.starts[top + 1]), top};
    }
    __syncthreads();
    double most = centre.gap2_within(outer);
    while (memory_.size > 0) {
      Span item = next_item();
      bool opens = false;
      int64_t row = -1;
      if (item.begin == item.end) {
      } else if (item.plane == Span::rows) {
        row = item.begin;
      } else {
        opens = open(centre, most, inner, &item);
      }
      int place = place_in(&memory_.size, opens);
      if (opens) stack_[place] = item;
      visit(row);
      __syncthreads();
    }
  }

 private:
  // A node becomes what is in it, if that may be in the shell.
  __device__ bool open(const Centre<D, T>& centre, double most, double inner, Span* item) const {
    int64_t node = item->begin;
    int plane = item->plane;
    const T *lower = tree_.lower + node * D, *upper = tree_.upper + node * D;
    int64_t first = tree_.first_row(plane, node), last = tree_.first_row(plane, node + 1);
    if (first == last || centre.gap2(lower, upper) > most || centre.reach(lower, upper) < inner) return false;
    if (plane > 0) {
      first = tree_.first_child(plane, node);
      last = tree_.first_child(plane, node + 1);
    }
    *item = {static_cast<int32_t>(first), static_cast<int32_t>(last), plane - 1};
    return true;
  }

  // Takes items off the top of the stack, one for each thread; an empty span for those that get none.
  __device__ Span next_item() {
    int entry = memory_.size - 1 - static_cast<int>(threadIdx.x);
    Span mine{};
    if (entry >= 0) mine = stack_[entry];
    int length = smaller(mine.end - mine.begin, Threads), until = block_inclusive_sum(length);
    memory_.until[threadIdx.x] = until;
    __syncthreads();
    Span item{};
    if (static_cast<int>(threadIdx.x) < memory_.until[Threads - 1]) {
      int which = span_of(static_cast<int>(threadIdx.x)), before = which > 0 ? memory_.until[which - 1] : 0;
      item = stack_[memory_.size - 1 - which];
      item.begin += static_cast<int>(threadIdx.x) - before;
      item.end = item.begin + 1;
    }
    __syncthreads();
    int taken = smaller(length, Threads - (until - length));
    if (entry >= 0 && taken >= 0) {
      if (taken == mine.end - mine.begin) {
        atomicMin(&memory_.size, entry);
      } else {
        stack_[entry].begin += taken;
      }
    }
    __syncthreads();
    return item;
  }

  // The first span from the top of the stack that ends behind an item.
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

  // The sum over this thread and those before it.
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
