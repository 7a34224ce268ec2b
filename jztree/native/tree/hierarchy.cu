// One thread per row finds the highest differing bit between the row's key and its predecessor's, and stores it in a
// byte. One thread per leaf then picks the boundary in its window, and one warp per leaf computes its box. Higher
// planes repeat this over the boundaries below, with one thread per node. One block builds a plane that is small
// enough. Every array is read once, in order.

#include <cstdint>
#include <vector>

#include "common/cuda/context.cuh"
#include "common/cuda/keys.cuh"
#include "common/cuda/loads.cuh"
#include "common/cuda/surrounding.cuh"
#include "common/cuda/warp.cuh"
#include "hierarchy.h"

namespace jztree {
namespace {

// Greater than any level: the first row has no predecessor.
constexpr uint8_t first_level = 255;
// One block makes the planes with at most this number of nodes.
constexpr int64_t block_plane = 1024;
constexpr int block_threads = 512;

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

// The window rule over the nodes of the plane below.
template <typename T>
__device__ void plane_boundary(const Plane<T>& below, const Plane<T>& plane, int64_t fan_out, int64_t count,
                               int64_t node) {
  if (node == plane.size) {
    plane.splits[node] = static_cast<int32_t>(below.size);
    plane.rows[node] = static_cast<int32_t>(count);
    return;
  }
  int64_t best = node * fan_out, end = best + fan_out < below.size ? best + fan_out : below.size;
  int best_level = -1;
  for (int64_t child = best; child < end; ++child) {
    // Trailing leaves without particles have no key; they join the node before them.
    int level = below.rows[child] < count ? below.level[child] : -1;
    if (level > best_level) best = child, best_level = level;
  }
  plane.splits[node] = static_cast<int32_t>(best);
  plane.rows[node] = below.rows[best];
  plane.level[node] = static_cast<uint8_t>(best_level < 0 ? 0 : best_level);
}

template <int D, typename T>
__device__ void plane_box(const Plane<T>& below, const Plane<T>& plane, int64_t node) {
  Surrounding<D, T> box;
  for (int64_t child = plane.splits[node]; child < plane.splits[node + 1]; ++child)
    box.include(below.lower + child * D, below.upper + child * D);
  for (int d = 0; d < D; ++d) {
    plane.lower[node * D + d] = box.low[d];
    plane.upper[node * D + d] = box.high[d];
  }
}

template <typename T>
__global__ void plane_boundaries(Plane<T> below, Plane<T> plane, int64_t fan_out, Count num) {
  if (thread_index() <= plane.size) plane_boundary(below, plane, fan_out, num(), thread_index());
}

template <int D, typename T>
__global__ void plane_boxes(Plane<T> below, Plane<T> plane) {
  if (thread_index() < plane.size) plane_box<D>(below, plane, thread_index());
}

// Run by one block: all of its threads see its writes after __syncthreads.
template <int D, typename T>
__global__ void __launch_bounds__(block_threads)
    make_small_plane(Plane<T> below, Plane<T> plane, int64_t fan_out, Count num) {
  for (int64_t node = threadIdx.x; node <= plane.size; node += block_threads)
    plane_boundary(below, plane, fan_out, num(), node);
  __syncthreads();
  for (int64_t node = threadIdx.x; node < plane.size; node += block_threads) plane_box<D>(below, plane, node);
}

template <int D, typename T>
void build(Queue& queue, const HierarchyOver<D, T>& in, const KeyGrid<D>* grid, const std::vector<Plane<T>>& planes) {
  const Plane<T>& leaves = planes[0];
  uint8_t* level = queue.scratch<uint8_t>(in.num.rows);
  queue.fill_bytes(in.unordered, 0, 1);
  queue.launch_over(in.num.rows, find_levels<D, T>, in.pos, in.num, grid, level, in.unordered);
  queue.launch_over(leaves.size + 1, leaf_boundaries, level, in.num, in.leaf_size, leaves.size, leaves.splits,
                    leaves.rows, leaves.level);
  queue.launch_warps(leaves.size, leaf_boxes<D, T>, in.pos, grid, leaves);
  for (size_t p = 1; p < planes.size(); ++p) {
    if (planes[p].size <= block_plane) {
      queue.launch(1, block_threads, 0, make_small_plane<D, T>, planes[p - 1], planes[p], in.fan_out, in.num);
    } else {
      queue.launch_over(planes[p].size + 1, plane_boundaries<T>, planes[p - 1], planes[p], in.fan_out, in.num);
      queue.launch_over(planes[p].size, plane_boxes<D, T>, planes[p - 1], planes[p]);
    }
  }
}

template <int D, typename T>
void hierarchy(Queue& queue, const HierarchyOver<D, T>& in) {
  const TreeLayout& layout = in.layout;
  uint8_t* level = queue.scratch<uint8_t>(layout.nodes());
  std::vector<Plane<T>> planes;
  for (int p = 0; p < layout.planes(); ++p) {
    int64_t start = layout.starts[static_cast<size_t>(p)], split = layout.split_start(p);
    planes.push_back({layout.sizes[static_cast<size_t>(p)], in.splits + split, in.particle_splits + split,
                      in.lower + start * D, in.upper + start * D, level + start});
  }
  build(queue, in, device_grid(queue, in.keys), planes);
}

}  // namespace

JZTREE_KERNEL(hierarchy, HierarchyOver);

}  // namespace jztree
