// One thread per row finds the highest differing bit between the row's key and its predecessor's, and stores it in a
// byte. One thread per leaf then picks the boundary in its window, and one warp per leaf computes its box. Higher
// planes repeat this over the boundaries below, with one thread per node. One block builds all small planes. Every
// array is read in order.

#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/keys.cuh"
#include "common/cuda/loads.cuh"
#include "common/cuda/planes.cuh"
#include "common/cuda/surrounding.cuh"
#include "common/cuda/warp.cuh"
#include "hierarchy.h"

namespace jztree {
namespace {

// Greater than any level: the first row has no predecessor.
constexpr uint8_t first_level = 255;

// One plane in the flat arrays.
template <typename T>
struct Plane {
  int64_t size;
  int32_t *splits, *rows;
  T *lower, *upper;
  uint8_t* level;
};

template <int D, typename T>
__global__ void find_levels(const T* pos, Count num, const KeyGrid<D>* grid, uint8_t* level, int32_t* unordered) {
  int64_t row = thread_index(), count = num();
  MortonKey key{0, 0}, before{0, 0};
  if (row < count) key = Morton<D>::key(*grid, pos + row * D);
  before.high = __shfl_up_sync(all_lanes, key.high, 1);
  before.low = __shfl_up_sync(all_lanes, key.low, 1);
  if (row >= count) return;
  if (lane_index() == 0 && row > 0) before = Morton<D>::key(*grid, pos + (row - 1) * D);
  level[row] = row == 0 ? first_level : static_cast<uint8_t>(highest_difference(before, key));
  if (row > 0 && key < before) store_relaxed(unordered, 1);
}

__global__ void leaf_boundaries(const uint8_t* row_level, Count num, int64_t leaf_size, int64_t leaves, int32_t* splits,
                                int32_t* rows, uint8_t* level) {
  int64_t leaf = thread_index(), count = num();
  if (leaf > leaves) return;
  int64_t begin = leaf * leaf_size, end = begin + leaf_size, best = begin < count ? begin : count;
  if (end > count) end = count;
  int best_level = -1;
  for (int64_t row = begin; row < end; ++row)
    if (row_level[row] > best_level) best = row, best_level = row_level[row];
  if (leaf == leaves) best = count;
  splits[leaf] = rows[leaf] = static_cast<int32_t>(best);
  if (leaf < leaves) level[leaf] = static_cast<uint8_t>(best_level < 0 ? 0 : best_level);
}

// One warp per leaf; a lane writes the bounds in one dimension.
template <int D, typename T>
__global__ void leaf_boxes(const T* pos, const KeyGrid<D>* grid, Plane<T> leaves) {
  const int64_t leaf = thread_index() / warp_size;
  if (leaf >= leaves.size) return;
  const auto box = box_of_rows<D>(pos, leaves.rows[leaf], leaves.rows[leaf + 1], grid->period);
  T low = box.low[0], high = box.high[0];
  for (int d = 1; d < D; ++d)
    if (lane_index() == d) low = box.low[d], high = box.high[d];
  if (lane_index() >= D) return;
  leaves.lower[leaf * D + lane_index()] = low;
  leaves.upper[leaf * D + lane_index()] = high;
}

// Make a node of a plane above the leaves: its boundary by the window rule over the nodes of the plane below, and its
// box. The thread of a node also finds the boundary of the next node, where its children end.
template <int D, typename T>
struct MakeNode {
  Plane<T> planes[most_planes];
  int64_t fan_out;
  Count num;

  __device__ void operator()(int number, int64_t node) const {
    const Plane<T>&below = planes[number - 1], &plane = planes[number];
    int level, next_level;
    const int64_t first = boundary(below, plane, node, &level), end = boundary(below, plane, node + 1, &next_level);
    plane.splits[node] = static_cast<int32_t>(first);
    plane.rows[node] = below.rows[first];
    plane.level[node] = static_cast<uint8_t>(level);
    if (node + 1 == plane.size) {
      plane.splits[plane.size] = static_cast<int32_t>(end);
      plane.rows[plane.size] = static_cast<int32_t>(num());
    }
    Surrounding<D, T> box;
    for (int64_t child = first; child < end; ++child) box.include(below.lower + child * D, below.upper + child * D);
    for (int d = 0; d < D; ++d) {
      plane.lower[node * D + d] = box.low[d];
      plane.upper[node * D + d] = box.high[d];
    }
  }

  // The first child of a node, and the level there.
  __device__ int64_t boundary(const Plane<T>& below, const Plane<T>& plane, int64_t node, int* level) const {
    *level = 0;
    if (node == plane.size) return below.size;
    const int64_t begin = node * fan_out, end = begin + fan_out < below.size ? begin + fan_out : below.size;
    int64_t best = begin, count = num();
    int best_level = -1;
    for (int64_t child = begin; child < end; ++child) {
      // Trailing leaves without particles have no key; they join the node before them.
      const int child_level = below.rows[child] < count ? below.level[child] : -1;
      if (child_level > best_level) best = child, best_level = child_level;
    }
    *level = best_level < 0 ? 0 : best_level;
    return best;
  }
};

template <int D, typename T>
void hierarchy(Queue& queue, const HierarchyOver<D, T>& in) {
  const TreeLayout& layout = in.layout;
  const int64_t n = in.num.rows;
  const KeyGrid<D>* grid = device_grid(queue, in.keys);
  auto *row_level = queue.scratch<uint8_t>(n), *level = queue.scratch<uint8_t>(layout.nodes());
  MakeNode<D, T> make{{}, in.fan_out, in.num};
  for (int p = 0; p < layout.planes(); ++p) {
    const int64_t start = layout.starts[static_cast<size_t>(p)], split = layout.split_start(p);
    make.planes[p] = {layout.sizes[static_cast<size_t>(p)],
                      in.splits + split,
                      in.particle_splits + split,
                      in.lower + start * D,
                      in.upper + start * D,
                      level + start};
  }
  const Plane<T>& leaves = make.planes[0];
  queue.fill_bytes(in.unordered, 0, 1);
  queue.launch_over(n, find_levels<D, T>, in.pos, in.num, grid, row_level, in.unordered);
  queue.launch_over(leaves.size + 1, leaf_boundaries, row_level, in.num, in.leaf_size, leaves.size, leaves.splits,
                    leaves.rows, leaves.level);
  queue.launch_warps(leaves.size, leaf_boxes<D, T>, in.pos, grid, leaves);
  launch_planes(queue, layout, 1, 1, make);
}

}  // namespace

JZTREE_KERNEL(hierarchy, HierarchyOver);

}  // namespace jztree
