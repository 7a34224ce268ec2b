// The trees of large groups (group_tree.h). The same launches build all trees.
//
// Three stable radix sorts, by the two words of the key and by the first row of the group, put the particles of each
// such group into z-order; other rows stay in place. A plane has one node per window of 12 * 4^plane rows: it begins at
// the first row of the window whose cut is the largest, or at row 0 in the first window. (A boundary between windows of
// boundaries is the largest cut in the window of all rows.) So the size of the group gives the numbers of nodes, and a
// launch per plane, with a thread per node, builds the planes of every group.
//
// Arrays over nodes and over runs have no gaps for small groups: a group has n > 512 rows and fewer than n / 8 nodes
// and n / 40 runs, so its nodes begin at its first row over 8, its runs at its first row over 40, and no other group
// has nodes or runs there.
//
// Work arrays: 125 bytes per row in 3D, mostly float64 places and nodes, and 43 more for a box with its images. Not
// tuned on a GPU yet.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "common/cuda/context.cuh"
#include "common/cuda/loads.cuh"
#include "common/cuda/primitives.cuh"
#include "common/morton.h"
#include "gravity_node.h"
#include "group_places.cuh"

namespace jztree {

JZTREE_BOTH inline int64_t rows_of_window(int plane) { return leaf_window << (2 * plane); }
static_assert(fan_window == 4);
JZTREE_BOTH inline int64_t nodes_of_plane(int64_t rows, int plane) {
  return (rows + rows_of_window(plane) - 1) / rows_of_window(plane);
}
JZTREE_BOTH inline int planes_of(int64_t rows) {
  int planes = 1;
  while (nodes_of_plane(rows, planes - 1) > 1) ++planes;
  return planes;
}

// Units of a group, and the grid of its keys in these units.
template <int D>
struct GroupFrame {
  KeyGrid<D> grid;
  double length_factor, mass_factor, softening;
  double wide_period[D];  // the period of dimensions in which some pairs have nearer images than their places
  bool has_negative, is_wide;
};

template <int D>
struct GroupTrees {
  static constexpr int64_t rows_of_frame = summed_directly, rows_of_node = 8, rows_of_run = 40;
  static constexpr int extremes = 2 * D + 2;

  GroupRows<D> in;
  Lengths softening;
  bool images;             // whether the group is a box with all its images, if the box is periodic
  uint64_t* extreme;       // per frame: bits of the least place, -place and -|mass|, and 0 if a mass is negative
  GroupFrame<D>* frames;   // (n / rows_of_frame,)
  uint64_t* key;           // (n,): the first word
  int32_t* order;          // (n,): the row of each particle in z-order
  double *place, *weight;  // in z-order, in the units of the frame
  int32_t* first_row;      // (n / rows_of_node,): of each node in its group
  GravityNode<D>* nodes;
  NodeMoments<D>* moments;

  __device__ bool sums_over_images() const {
    bool periodic = images && D == 3;
    for (int d = 0; d < D && periodic; ++d) periodic = in.box[d] > 0;
    return periodic;
  }
  // The group of a row if it has a tree, or -1. A box with all its images is group 0.
  __device__ int64_t tree_of(int64_t row) const {
    const int64_t g = row < in.rows ? in.group[row] : -1;
    return g >= 0 && in.size(g) > summed_directly && (g == 0 || !sums_over_images()) ? g : -1;
  }
  // The group of a part of a tree, or -1; there is a part for each `rows_of_part` rows.
  __device__ int64_t owner(int64_t part, int64_t rows_of_part) const {
    const int64_t g = tree_of((part + 1) * rows_of_part);
    return g >= 0 && part >= in.begin(g) / rows_of_part ? g : -1;
  }
  __device__ int64_t number_in_group(int64_t g, int64_t part, int64_t rows_of_part) const {
    return part - in.begin(g) / rows_of_part;
  }
  __device__ const GroupFrame<D>& frame(int64_t g) const { return frames[in.begin(g) / rows_of_frame]; }
  __device__ GravityNodes<D> tree(int64_t g) const {
    const int64_t row = in.begin(g), node = row / rows_of_node;
    return {place + row * D, weight + row, nodes + node, moments + node};
  }
  // The highest bit that differs between the key of a row of a group and the key before.
  __device__ int cut(int64_t g, int64_t row) const {
    if (row == 0) return 128;
    const uint64_t* keys = key + in.begin(g) + row;
    if (keys[0] != keys[-1]) return 128 - leading_zeros(keys[0] ^ keys[-1]);
    const double* row_place = place + (in.begin(g) + row) * D;
    return highest_difference(Morton<D>::key(frame(g).grid, row_place), Morton<D>::key(frame(g).grid, row_place - D));
  }
};

// Number `i` of the extremes at a row of a group, as bits that sort like it.
template <int D>
__device__ uint64_t extreme_bits(const GroupRows<D>& in, int64_t row, int i) {
  if (i == 2 * D + 1) return in.weight[row] >= 0;
  const double number = i < D       ? in.place[row * D + i]
                        : i < 2 * D ? -in.place[row * D + i - D]
                                    : -std::fabs(in.weight[row]);
  return BitOrder<D>::rising_bits(number);
}

__device__ inline double number_of_rising_bits(uint64_t bits) {
  constexpr uint64_t sign = uint64_t{1} << 63;
  return __longlong_as_double(static_cast<long long>(bits & sign ? bits ^ sign : ~bits));
}

template <int D>
__global__ void find_extremes(const __grid_constant__ GroupTrees<D> trees) {
  const int64_t row = thread_index(), g = trees.tree_of(row);
  for (unsigned lanes = __ballot_sync(all_lanes, g >= 0); lanes != 0;) {
    const int64_t here = __shfl_sync(all_lanes, g, __ffs(static_cast<int>(lanes)) - 1);
    uint64_t* extreme = trees.extreme + trees.in.begin(here) / trees.rows_of_frame * trees.extremes;
    for (int i = 0; i < trees.extremes; ++i) {
      const uint64_t bits = warp_min(g == here ? extreme_bits(trees.in, row, i) : ~uint64_t{0});
      if (lane_index() == 0) lower(extreme + i, bits);
    }
    lanes &= ~__ballot_sync(all_lanes, g == here);
  }
}

template <int D>
__global__ void make_frames(const __grid_constant__ GroupTrees<D> trees) {
  const int64_t part = thread_index();
  if (trees.owner(part, trees.rows_of_frame) < 0) return;
  const uint64_t* extreme = trees.extreme + part * trees.extremes;
  double lower[D], upper[D], open[D] = {}, extent = least_extent * trees.softening[0];
  for (int d = 0; d < D; ++d) {
    lower[d] = number_of_rising_bits(extreme[d]);
    upper[d] = -number_of_rising_bits(extreme[D + d]);
    extent = std::max(extent, upper[d] - lower[d]);
    if (trees.sums_over_images()) extent = std::max(extent, trees.in.box[d]);
  }
  const double length_factor = factor_to_one(extent);
  GroupFrame<D>& frame = trees.frames[part];
  frame.is_wide = false;
  for (int d = 0; d < D; ++d) {
    const bool is_wide = !trees.sums_over_images() && 2 * (upper[d] - lower[d]) > trees.in.box[d];
    frame.wide_period[d] = is_wide ? trees.in.box[d] * length_factor : 0;
    frame.is_wide = frame.is_wide || frame.wide_period[d] > 0;
    lower[d] *= length_factor, upper[d] *= length_factor;
  }
  frame.grid = KeyGrid<D>(KeyShape<D>{D}, lower, upper, open);
  frame.length_factor = length_factor;
  frame.mass_factor = factor_to_one(-number_of_rising_bits(extreme[2 * D]));
  frame.softening = trees.softening[0] * length_factor;
  frame.has_negative = extreme[2 * D + 1] == 0;
}

// Write the first words of the keys, or begin with all rows in their order and the second words.
template <int D>
__global__ void write_group_keys(const __grid_constant__ GroupTrees<D> trees, bool begins) {
  const int64_t i = thread_index();
  if (i >= trees.in.rows) return;
  if (begins) trees.order[i] = static_cast<int32_t>(i);
  const int64_t row = trees.order[i], g = trees.tree_of(row);
  trees.key[i] = 0;
  if (g < 0) return;
  const GroupFrame<D>& frame = trees.frame(g);
  double place[D];
  for (int d = 0; d < D; ++d) place[d] = trees.in.place[row * D + d] * frame.length_factor;
  trees.key[i] = begins ? Morton<D>::key(frame.grid, place).low : Morton<D>::high(frame.grid, place);
}

// first[i] = the first row of the group of particle i, or the row itself.
template <int D>
__global__ void write_first_rows(const __grid_constant__ GroupTrees<D> trees, uint32_t* first) {
  const int64_t i = thread_index();
  if (i >= trees.in.rows) return;
  const int64_t g = trees.tree_of(trees.order[i]);
  first[i] = static_cast<uint32_t>(g < 0 ? trees.order[i] : trees.in.begin(g));
}

// Replace places and masses in the order of rows by places, masses and keys in z-order.
template <int D, typename T>
__global__ void write_sorted_places(const __grid_constant__ GroupTrees<D> trees,
                                    const __grid_constant__ GroupPlaces<D, T> in) {
  const int64_t i = thread_index(), g = trees.tree_of(i);
  if (g < 0) return;
  const GroupFrame<D>& frame = trees.frame(g);
  double* place = trees.place + i * D;
  in.take_place(g, trees.order[i], place);
  for (int d = 0; d < D; ++d) place[d] *= frame.length_factor;
  trees.weight[i] = in.particles.mass_of(trees.order[i]) * frame.mass_factor;
  trees.key[i] = Morton<D>::high(frame.grid, place);
}

// The first row of a node, number i of the plane that begins at node `first`.
template <int D>
__device__ int64_t first_row_of_node(const GroupTrees<D>& trees, int64_t g, int plane, int64_t first, int64_t i) {
  if (i == 0) return 0;
  const int64_t rows = trees.in.size(g), window = plane == 0 ? leaf_window : fan_window;
  const int64_t items = plane == 0 ? rows : nodes_of_plane(rows, plane - 1);
  const int32_t* below = trees.first_row + trees.in.begin(g) / trees.rows_of_node + (first - items);
  int64_t boundary = 0;
  int largest = -1;
  for (int64_t item = i * window; item < std::min(items, (i + 1) * window); ++item) {
    const int64_t row = plane == 0 ? item : below[item];
    const int cut = trees.cut(g, row);
    if (cut > largest) boundary = row, largest = cut;
  }
  return boundary;
}

// Write the first rows of the nodes of a plane, and complete the nodes of the plane below.
template <int D>
__global__ void add_plane(const __grid_constant__ GroupTrees<D> trees, int plane) {
  const int64_t part = thread_index(), g = trees.owner(part, trees.rows_of_node);
  if (g < 0) return;
  const int64_t rows = trees.in.size(g), number = trees.number_in_group(g, part, trees.rows_of_node);
  int own_plane = 0;
  int64_t first = 0, below = 0, count = nodes_of_plane(rows, 0);
  for (; number >= first + count; count = nodes_of_plane(rows, ++own_plane)) {
    if (count == 1) return;  // the end of the tree
    below = first, first += count;
  }
  const int64_t i = number - first;
  if (own_plane == plane) trees.first_row[part] = static_cast<int32_t>(first_row_of_node(trees, g, plane, first, i));
  if (own_plane != plane - 1) return;
  GravityNode<D> node{};
  NodeMoments<D> moments;
  const bool last = i + 1 == count;
  node.begin = trees.first_row[part];
  node.end = static_cast<int32_t>(last ? rows : trees.first_row[part + 1]);
  if (own_plane > 0) {
    const int64_t window = rows_of_window(own_plane - 1), child = node.begin / window;
    node.child = static_cast<int32_t>(below + child);
    node.children = static_cast<int32_t>((last ? first - below : node.end / window) - child);
  }
  trees.tree(g).take_moments(node, moments);
  trees.nodes[part] = node;
  trees.moments[part] = moments;
}

template <int D, typename T>
GroupTrees<D> group_trees(Queue& queue, const GroupPlaces<D, T>& in, const Lengths& softening, bool images) {
  using Trees = GroupTrees<D>;
  const int64_t n = in.rows, frames = n / Trees::rows_of_frame, nodes = n / Trees::rows_of_node;
  Trees trees{in,
              softening,
              images,
              queue.scratch<uint64_t>(frames * Trees::extremes),
              queue.scratch<GroupFrame<D>>(frames),
              queue.scratch<uint64_t>(n),
              queue.scratch<int32_t>(n),
              in.place,
              in.weight,
              queue.scratch<int32_t>(nodes),
              queue.scratch<GravityNode<D>>(nodes),
              queue.scratch<NodeMoments<D>>(nodes)};
  if (n <= summed_directly) return trees;
  queue.fill_bytes(trees.extreme, 0xff, frames * Trees::extremes);
  queue.launch_over(n, find_extremes<D>, trees);
  queue.launch_over(frames, make_frames<D>, trees);
  DoubleBuffer<uint64_t> keys{trees.key, queue.scratch<uint64_t>(n)};
  DoubleBuffer<int32_t> rows{trees.order, queue.scratch<int32_t>(n)};
  for (const bool begins : {true, false}) {
    queue.launch_over(n, write_group_keys<D>, trees, begins);
    sort_pairs(queue, keys, rows, n);
    trees.key = keys.current;
    trees.order = rows.current;
  }
  // The keys are written again after the sorts.
  DoubleBuffer<uint32_t> first{reinterpret_cast<uint32_t*>(keys.current), reinterpret_cast<uint32_t*>(keys.other)};
  queue.launch_over(n, write_first_rows<D>, trees, first.current);
  sort_pairs(queue, first, rows, n, 0, bits_of(n));
  trees.order = rows.current;
  queue.launch_over(n, write_sorted_places<D, T>, trees, in);
  for (int plane = 0; plane <= planes_of(n); ++plane) queue.launch_over(nodes, add_plane<D>, trees, plane);
  return trees;
}

}  // namespace jztree
