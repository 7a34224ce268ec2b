// What all warps that count pairs look at: both sets, and edges as they are compared with.
#pragma once

#include <cstdint>

#include "common/cuda/boxes.cuh"
#include "common/cuda/tree.cuh"
#include "common/cuda/warp.cuh"
#include "common/cuda/wrapped.cuh"
#include "node_weights.cuh"
#include "pair_counts.h"

namespace jztree {

// What depends on numbers that lie on the GPU.
template <int D, typename T>
struct PairSetup {
  Scale<D, T> scale;
  PairRule<D, T> rule;
  T gap_period[D];  // for lower bounds: "around the boundary" is rounded in the last bit of the period

  __device__ PairSetup(const double* box, double open_extent, bool wrapped, PairMode mode, int axis)
      : scale(box, open_extent),
        // Only what is scaled down can become 0.
        rule(DistanceRule<D, T>(wrapped, scale.factor >= 1, scale), mode, axis) {
    for (int d = 0; d < D; ++d) gap_period[d] = scale.period[d] * below_one<T>;
  }
};

// Ascending edges, an array for each of their parts.
template <typename T>
struct PairEdges {
  T *surely, *possibly;
  double* exact;
  int count;

  __device__ void put(int i, const PairEdge<T>& edge) const {
    surely[i] = edge.surely;
    possibly[i] = edge.possibly;
    exact[i] = edge.exact;
  }

  // The first from `lo` on and before `hi` whose bound x is not beyond; `hi`: none.
  __device__ static int first_not_below(const T* bounds, T x, int lo, int hi) {
    while (lo < hi) {
      int middle = (lo + hi) / 2;
      (x > bounds[middle] ? lo : hi) = x > bounds[middle] ? middle + 1 : middle;
    }
    return lo;
  }

  // Of quantities from gap to reach: none is within edges before `lo`, all are within those from `hi` on.
  __device__ void narrow(T gap, T reach, int* lo, int* hi) const {
    *lo = first_not_below(possibly, gap, 0, count);
    *hi = first_not_below(surely, reach, *lo, count);
  }

  // The first edge that a pair is within, whose quantity is from `low` to `high`, if it is from `lo` to `hi`.
  template <typename Within>
  __device__ int first_within(T low, T high, int lo, int hi, const Within& within) const {
    int edge = first_not_below(possibly, low, lo, hi);
    while (edge < hi && !(high <= surely[edge]) && !within(exact[edge])) ++edge;
    return edge;
  }
};

// One set of particles.
template <int D, typename T>
struct PairParticles {
  static constexpr int32_t mixed = -1, nobody = -2;

  DeviceTree<D, T> tree;
  const T* weight;             // [row]; null: all weigh 1
  const int32_t* region;       // [row]; null: there are none
  const double* node_weight;   // [node]; null: all weigh 1
  const int32_t* node_region;  // [node], that of all its particles, or `mixed`

  __device__ double row_weight(int64_t row) const { return weight ? static_cast<double>(weight[row]) : 1.; }
  __device__ int32_t row_region(int64_t row) const { return region ? region[row] : 0; }
  __device__ double weight_of(int64_t node, uint32_t rows) const {
    return node_weight ? node_weight[node] : static_cast<double>(rows);
  }
  __device__ int32_t region_of(int64_t node) const { return node_region ? node_region[node] : 0; }
};

template <int D, typename T>
struct PairProblem {
  PairParticles<D, T> one, other;
  const PairSetup<D, T>* setup;
  PairEdges<T> first, second;
  int plane;      // whose nodes of the first set are dealt out to warps
  int64_t nodes;  // of these
  int64_t tasks;  // a warp each
  bool self;
};

// For one warp.
template <int D, typename T>
__global__ void set_up_pairs(DeviceTree<D, T> one, DeviceTree<D, T> other, Lengths box, const int32_t* wrapped,
                             PairMode mode, int axis, PairSetup<D, T>* setup) {
  double period[D];
  for (int d = 0; d < D; ++d) period[d] = box[d];
  double extent = open_span(period, one, other).template for_scale<T>();
  if (lane_index() == 0) *setup = PairSetup<D, T>(period, extent, *wrapped != 0, mode, axis);
}

template <int D, typename T>
__global__ void make_pair_edges(const PairSetup<D, T>* setup, Lengths first, Lengths second, PairEdges<T> first_edges,
                                PairEdges<T> second_edges) {
  int64_t i = thread_index(), j = i - first.count;
  if (i < first.count) first_edges.put(static_cast<int>(i), setup->rule.first_edge(first[i]));
  if (j >= 0 && j < second.count) second_edges.put(static_cast<int>(j), setup->rule.second_edge(second[j]));
}

// The regions of the nodes of a plane. parts: of rows or of nodes.
static __global__ void join_regions(const int32_t* splits, const int32_t* parts, int64_t nodes, int32_t* regions) {
  int64_t node = thread_index();
  if (node >= nodes) return;
  constexpr int32_t nobody = PairParticles<1, float>::nobody, mixed = PairParticles<1, float>::mixed;
  int32_t region = nobody;
  for (int64_t i = splits[node]; i < splits[node + 1]; ++i)
    if (parts[i] != nobody) region = region == nobody || region == parts[i] ? parts[i] : mixed;
  regions[node] = region;
}

template <int D, typename T>
const int32_t* node_regions(Queue& queue, const Tree<D, T>& tree, const int32_t* region) {
  const TreeLayout& layout = tree.layout;
  auto* found = queue.scratch<int32_t>(layout.nodes());
  for (int plane = 0; plane < layout.planes(); ++plane) {
    size_t here = static_cast<size_t>(plane);
    const int32_t* parts = plane == 0 ? region : found + layout.starts[here - 1];
    queue.launch_over(layout.sizes[here], join_regions, tree.splits + layout.split_start(plane), parts,
                      layout.sizes[here], found + layout.starts[here]);
  }
  return found;
}

template <int D, typename T>
PairParticles<D, T> particles_of(Queue& queue, const PairSet<D, T>& set) {
  PairParticles<D, T> found{on_device(set.tree), nullptr, nullptr, nullptr, nullptr};
  if (set.weight.rows() > 0) {
    found.weight = set.weight;
    found.node_weight = node_weights(queue, set.tree, found.weight);
  }
  if (set.region.rows() > 0) {
    found.region = set.region;
    found.node_region = node_regions(queue, set.tree, found.region);
  }
  return found;
}

template <typename T>
PairEdges<T> room_for_edges(Queue& queue, int64_t count) {
  return {queue.scratch<T>(count), queue.scratch<T>(count), queue.scratch<double>(count), static_cast<int>(count)};
}

// plane, nodes and tasks are left open.
template <int D, typename T>
PairProblem<D, T> set_up(Queue& queue, const PairCounts<D, T>& in) {
  auto* wrapped = queue.scratch<int32_t>(1);
  auto* setup = queue.scratch<PairSetup<D, T>>(1);
  PairProblem<D, T> problem{};
  problem.one = particles_of(queue, in.one);
  problem.other = in.self ? problem.one : particles_of(queue, in.other);
  problem.setup = setup;
  problem.first = room_for_edges<T>(queue, in.edges.count);
  problem.second = room_for_edges<T>(queue, in.mode == PairMode::distance ? 0 : in.edges_b.count);
  problem.self = in.self;
  queue.fill_bytes(wrapped, 0, 1);
  look_for_wrapped(queue, problem.one.tree, in.box, wrapped);
  if (!in.self) look_for_wrapped(queue, problem.other.tree, in.box, wrapped);
  queue.launch(1, warp_size, 0, set_up_pairs<D, T>, problem.one.tree, problem.other.tree, in.box, wrapped, in.mode,
               in.axis, setup);
  Lengths second = in.edges_b;
  second.count = problem.second.count;
  queue.launch_over(in.edges.count + second.count, make_pair_edges<D, T>, setup, in.edges, second, problem.first,
                    problem.second);
  return problem;
}

}  // namespace jztree
