// First, the particles within each leaf are linked. Every higher node that is smaller than the linking length ("dense")
// is joined whole. Then every leaf walks the planes to the later leaves in z-order within the linking length
// (fof_walk.cuh), and links its particles to theirs. Joins go to a lock-free union-find over the rows (union_find.cuh),
// and a last pass finds the roots. The output array stores the parents, so the kernel needs only one byte of work
// memory per leaf, unless labels are requested in another order.
//
// The CPU kernel walks once for a whole dense node. Here every leaf walks, also in dense nodes. Walks then have similar
// lengths for any linking length, and no warp processes more than its leaf. Pairs of large nodes need no second
// descent, which would be serial. Dense nodes still need no tests of single particles.
//
// One warp processes a leaf. To link particles within it, each lane takes one particle and tests it against all others
// through shared memory, which gives a mask of friends per lane. Sets grow from these masks by ballots, so a leaf of up
// to 32 particles needs no atomic operation. Each pass reads positions once (from the caches if leaves are neighbours).

#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/tree.cuh"
#include "common/cuda/warp.cuh"
#include "common/cuda/wrapped.cuh"
#include "fof.h"
#include "fof_rows.cuh"
#include "fof_walk.cuh"
#include "union_find.cuh"
#include "within/node_values.cuh"

namespace jztree {
namespace {

constexpr int leaf_threads = 128;  // small blocks: a block occupies its resources until its slowest warp is done
constexpr int leaf_warps = leaf_threads / warp_size;

// The lane's set among lanes that are linked to each other according to the masks, named by its smallest lane.
__device__ inline int set_of_lane(unsigned links) {
  int lane = lane_index(), set = lane;
  unsigned todo = __ballot_sync(all_lanes, links != 0);
  while (todo) {
    unsigned members = todo & (0u - todo), before = 0;
    int first = __ffs(static_cast<int>(todo)) - 1;
    while (members != before) {
      before = members;
      members |= __ballot_sync(all_lanes, (links & before) != 0);
    }
    if (members >> lane & 1) set = first;
    todo &= ~members;
  }
  return set;
}

// Link a leaf whose particles are not all linked to each other by its size. Returns its number of sets, to all lanes.
template <int D, typename T, typename Rule>
__device__ uint32_t link_rows(RowTester<D, T, Rule>& tester, const UnionFind& sets, uint32_t first, uint32_t end,
                              bool around) {
  uint32_t joins = 0;
  for (uint32_t tile = first; tile < end; tile += warp_size) {
    uint32_t row = tile + lane_index();
    bool used = row < end;
    RowPoint<D, T> point{};
    if (used) point = tester.load(row);
    unsigned all = __ballot_sync(all_lanes, used);
    tester.stage(point);
    int set = set_of_lane(tester.links(point, used, all, around, tile, tile, false) & ~(1u << lane_index()));
    if (used) sets.set(row, tile + set);
    joins += used && set != lane_index();
    // Only this warp uses the parents of this leaf's rows, from here on with all its lanes.
    for (uint32_t before = first; before < tile; before += warp_size) {
      tester.stage(tester.load(before + lane_index()));
      unsigned links = tester.links(point, used, all_lanes, around, tile, before, false);
      for (; links; links &= links - 1)
        joins +=
            sets.unite(static_cast<int32_t>(row), static_cast<int32_t>(before + __ffs(static_cast<int>(links)) - 1));
    }
  }
  return end - first - warp_sum(joins);
}

// Set the parent of each row, and whether each leaf is one set.
template <int D, typename T, typename Rule>
__global__ void link_within(DeviceTree<D, T> tree, const LinkSetup<D, T, Rule>* setup, UnionFind sets,
                            uint8_t* one_set) {
  __shared__ RowPoint<D, T> points[leaf_threads];
  alignas(16) __shared__ unsigned char memory[sizeof(LinkSetup<D, T, Rule>)];
  const LinkSetup<D, T, Rule>& shared = share_setup(setup, memory);
  int64_t leaf = thread_index() / warp_size;
  if (leaf >= tree.leaves()) return;
  int64_t first = tree.leaf_row(leaf), end = tree.leaf_row(leaf + 1);
  NodeBox<D, T> box = load_box(tree, leaf, shared.scale.factor);
  bool is_one_set = shared.is_dense(box, leaf);
  if (is_one_set || first == end) {
    for (int64_t row = first + lane_index(); row < end; row += warp_size) sets.set(row, first);
  } else {
    RowTester<D, T, Rule> tester(tree.pos, shared, points + (threadIdx.x / warp_size) * warp_size);
    is_one_set = link_rows(tester, sets, static_cast<uint32_t>(first), static_cast<uint32_t>(end),
                           wraps_around(box, box, shared.scale)) == 1;
  }
  if (lane_index() == 0) one_set[leaf] = is_one_set;
}

// Join the children of dense nodes above the leaves: each below the first child of its node. All nodes below a dense
// one are dense, and the first rows of dense leaves were roots. A row is the first one of a later child in a single
// node only. So every parent is written by one thread at most, and chains are at most as long as the number of planes.
template <int D, typename T, typename Rule>
__global__ void join_dense_nodes(DeviceTree<D, T> tree, const LinkSetup<D, T, Rule>* setup, UnionFind sets) {
  int64_t node = tree.leaves() + thread_index();
  if (node >= tree.starts[tree.planes]) return;
  int plane = 1;
  while (node >= tree.starts[plane + 1]) ++plane;
  NodeBox<D, T> box = load_box(tree, node, setup->scale.factor);
  int64_t first = tree.first_row(plane, node);
  if (first == tree.first_row(plane, node + 1) || !setup->is_dense(box, node)) return;
  for (int64_t child = tree.first_child(plane, node); child < tree.first_child(plane, node + 1); ++child) {
    int64_t row = tree.first_row(plane - 1, child);
    if (row > first && row < tree.first_row(plane - 1, child + 1)) sets.set(row, first);
  }
}

template <int D, typename T, typename Rule>
__global__ void link_to_later(DeviceTree<D, T> tree, const LinkSetup<D, T, Rule>* setup, UnionFind sets,
                              const uint8_t* one_set) {
  using Walk = LeafWalk<D, T, Rule>;
  alignas(16) __shared__ unsigned char memory[sizeof(LinkSetup<D, T, Rule>)];
  const LinkSetup<D, T, Rule>& shared = share_setup(setup, memory);
  int64_t leaf = thread_index() / warp_size;
  if (leaf >= tree.leaves() || tree.leaf_row(leaf) == tree.leaf_row(leaf + 1)) return;
  Walk(tree, shared, sets, one_set, leaf,
       dynamic_shared() + (threadIdx.x / warp_size) * Walk::shared_bytes(tree.planes))
      .run();
}

// Write labels in z-order. parents are those of `sets`.
__global__ void label_rows(UnionFind sets, Count num) {
  int64_t row = thread_index();
  if (row < num()) {
    sets.settle(row);
  } else if (row < num.rows) {
    sets.set(row, row);
  }
}

// For labels in another order: smallest[root] becomes the smallest number of its set, if it was the root's own number
// before. A minimum does not depend on the order of the threads.
__global__ void find_smallest(UnionFind sets, Count num, const int32_t* rows, int32_t* smallest) {
  int64_t row = thread_index();
  if (row >= num()) return;
  int32_t root = sets.settle(row), number = rows[row];
  // Usually avoids the atomic operation.
  if (number < load_relaxed(smallest + root)) atomicMin(smallest + root, number);
}

__global__ void take_smallest(UnionFind sets, Count num, const int32_t* smallest) {
  int64_t row = thread_index();
  if (row < num()) sets.set(row, smallest[sets.parents[row]]);
}

__global__ void write_labels(const int32_t* parents, Count num, const int32_t* rows, int32_t* label) {
  int64_t row = thread_index();
  if (row < num.rows) label[rows[row]] = row < num() ? parents[row] : rows[row];
}

// half: of each row's length, scaled.
template <int D, typename T>
__global__ void stage_halves(Lengths given, Count num, const BoxSetup<D, T>* setup, T* half) {
  int64_t row = thread_index();
  if (row < num()) half[row] = MeanLinkRule<D, T>::staged_half(given[row], setup->scale);
}

template <int D, typename T>
LinkLengths<T> stage_lengths(Queue& queue, const Friends<D, T>& in, const DeviceTree<D, T>& tree,
                             const int32_t* wrapped) {
  LinkLengths<T> lengths{in.rlink};
  if (!lengths.of_each()) return lengths;
  auto* setup = make_setup<BoxSetup<D, T>>(queue, in.box, tree, tree, wrapped);
  auto* half = queue.scratch<T>(in.rlink.count);
  queue.launch_over(in.rlink.count, stage_halves<D, T>, in.rlink, in.tree.num, setup, half);
  lengths.row = half;
  lengths.most = join_nodes<ExtremePart<T, true>>(queue, in.tree, lengths.row);
  lengths.least = join_nodes<ExtremePart<T, false>>(queue, in.tree, lengths.row);
  return lengths;
}

template <typename Rule, int D, typename T>
void link(Queue& queue, const DeviceTree<D, T>& tree, const Lengths& box, const int32_t* wrapped,
          const LinkLengths<T>& lengths, UnionFind sets) {
  auto* setup = make_setup<LinkSetup<D, T, Rule>>(queue, box, tree, wrapped, lengths);
  auto* one_set = queue.scratch<uint8_t>(tree.leaves());
  int64_t leaf_blocks = (tree.leaves() + leaf_warps - 1) / leaf_warps;
  queue.launch(leaf_blocks, leaf_threads, 0, link_within<D, T, Rule>, tree, setup, sets, one_set);
  queue.launch_over(tree.starts[tree.planes] - tree.leaves(), join_dense_nodes<D, T, Rule>, tree, setup, sets);
  queue.launch_warps(tree.leaves(), LeafWalk<D, T, Rule>::shared_bytes(tree.planes), leaf_threads,
                     link_to_later<D, T, Rule>, tree, setup, sets, one_set);
}

template <int D, typename T>
void fof(Queue& queue, const Friends<D, T>& in) {
  int64_t n = in.tree.pos.rows();
  UnionFind sets{in.tree.rows ? queue.scratch<int32_t>(n) : in.label};
  const DeviceTree<D, T> tree = on_device(in.tree);
  const int32_t* wrapped = any_wrapped(queue, in.box, tree);
  const LinkLengths<T> lengths = stage_lengths(queue, in, tree, wrapped);
  if (lengths.of_each()) {
    link<MeanLinkRule<D, T>>(queue, tree, in.box, wrapped, lengths, sets);
  } else {
    link<LinkRule<D, T>>(queue, tree, in.box, wrapped, lengths, sets);
  }
  if (!in.tree.rows) {
    queue.launch_over(n, label_rows, sets, in.tree.num);
  } else {
    queue.copy(in.label, in.tree.rows, n);
    queue.launch_over(n, find_smallest, sets, in.tree.num, in.tree.rows, in.label);
    queue.launch_over(n, take_smallest, sets, in.tree.num, in.label);
    queue.launch_over(n, write_labels, sets.parents, in.tree.num, in.tree.rows, in.label);
  }
}

}  // namespace

JZTREE_KERNEL(fof, Friends);

}  // namespace jztree
