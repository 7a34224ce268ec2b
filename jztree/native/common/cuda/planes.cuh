// Work on the nodes of a hierarchy plane by plane: each plane needs the results of the plane below.
#pragma once

#include <cstdint>

#include "common/tree_layout.h"
#include "queue.cuh"

namespace jztree {

// One block works on all planes from the first one of at most this number of items on, because a launch takes longer
// than their work.
constexpr int64_t small_plane = 1024;
constexpr int small_plane_threads = 512;

// The nodes of a hierarchy by plane.
struct PlaneNodes {
  const int32_t* splits;
  int64_t starts[most_planes + 1];

  PlaneNodes(const TreeLayout& layout, const int32_t* split_places) : splits(split_places), starts{} {
    for (size_t i = 0; i < layout.starts.size(); ++i) starts[i] = layout.starts[i];
  }

  // The place in the flat arrays.
  __device__ int64_t place(int plane, int64_t node) const { return starts[plane] + node; }
  // The place of the first child of a node, in plane 0 its first row. The first child of the next node is the end.
  __device__ int64_t first_child(int plane, int64_t node) const {
    return (plane > 0 ? starts[plane - 1] : 0) + splits[starts[plane] + plane + node];
  }
};

// The last planes of a hierarchy. items: of each plane from `first` on.
struct SmallPlanes {
  int first, count;
  int64_t items[most_planes];
};

template <typename Step>
__global__ void step_plane(Step step, int plane, int64_t items) {
  if (thread_index() < items) step(plane, thread_index());
}

// Run by one block: all of its threads see its writes after __syncthreads.
template <typename Step>
__global__ void __launch_bounds__(small_plane_threads) step_small_planes(Step step, SmallPlanes planes) {
  for (int i = 0; i < planes.count; ++i) {
    for (int64_t item = threadIdx.x; item < planes.items[i]; item += small_plane_threads) step(planes.first + i, item);
    __syncthreads();
  }
}

// Run step(plane, item) on the GPU for each item of the planes from `first` up. An item is a node of the plane, or a
// column of a node: item = node * columns + column.
template <typename Step>
void launch_planes(Queue& queue, const TreeLayout& layout, int first, int64_t columns, const Step& step) {
  SmallPlanes small{first, 0, {}};
  for (int plane = first; plane < layout.planes(); ++plane) {
    const int64_t items = layout.sizes[static_cast<size_t>(plane)] * columns;
    if (items > small_plane && small.count == 0) {
      queue.launch_over(items, step_plane<Step>, step, plane, items);
      small.first = plane + 1;
    } else {
      small.items[small.count++] = items;
    }
  }
  if (small.count > 0) queue.launch(1, small_plane_threads, 0, step_small_planes<Step>, step, small);
}

}  // namespace jztree
