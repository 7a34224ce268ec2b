// The data shared by all warps that count pairs: both sets, and edges in the form used by comparisons.
#pragma once

#include <cstdint>

#include "common/cuda/boxes.cuh"
#include "common/cuda/share.cuh"
#include "common/cuda/tree.cuh"
#include "common/cuda/warp.cuh"
#include "common/cuda/wrapped.cuh"
#include "pair_counts.h"
#include "within/node_values.cuh"

namespace jztree {

template <int D, typename T>
struct PairSetup : BoxSetup<D, T> {
  PairRule<D, T> rule;

  __device__ PairSetup(const Lengths& box, const DeviceTree<D, T>& one, const DeviceTree<D, T>& other,
                       const int32_t* any_wrapped, PairMode mode, int axis)
      : BoxSetup<D, T>(box, one, other, any_wrapped), rule(this->distance_rule(), mode, axis) {}
};

// Ascending edges, with one array for each member.
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

  // The first edge in [lo, hi) with a bound of at least x, or `hi` if all bounds are lower.
  __device__ static int first_not_below(const T* bounds, T x, int lo, int hi) {
    while (lo < hi) {
      int middle = (lo + hi) / 2;
      (x > bounds[middle] ? lo : hi) = x > bounds[middle] ? middle + 1 : middle;
    }
    return lo;
  }

  // For quantities from gap to reach: none is within edges before `lo`, all are within the edges from `hi` on.
  __device__ void narrow(T gap, T reach, int* lo, int* hi) const {
    *lo = first_not_below(possibly, gap, 0, count);
    *hi = first_not_below(surely, reach, *lo, count);
  }

  // The first edge between `lo` and `hi` that contains a pair with a quantity between `low` and `high`.
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
  const T* weight;             // [row]; null: all weights are 1
  const int32_t* region;       // [row]; null: no regions
  const double* node_weight;   // [node]; null: all weights are 1
  const int32_t* node_region;  // [node], the common region of its particles, or `mixed`

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
  int plane;      // warps take the nodes of this plane of the first set
  int64_t nodes;  // number of nodes of that plane
  int64_t tasks;  // one per warp
  bool self;
  bool separations;  // the weight of each pair is multiplied by its first quantity
};

template <int D, typename T>
__global__ void make_pair_edges(const PairSetup<D, T>* setup, Lengths first, Lengths second, PairEdges<T> first_edges,
                                PairEdges<T> second_edges) {
  int64_t i = thread_index(), j = i - first.count;
  if (i < first.count) first_edges.put(static_cast<int>(i), setup->rule.first_edge(first[i]));
  if (j >= 0 && j < second.count) second_edges.put(static_cast<int>(j), setup->rule.second_edge(second[j]));
}

// The common region of a node's particles, derived from the regions of its rows or children.
struct JoinedRegions {
  using Joined = int32_t;

  template <typename Parts>
  __device__ int32_t operator()(const Parts& parts, int64_t begin, int64_t end) const {
    constexpr int32_t nobody = PairParticles<1, float>::nobody, mixed = PairParticles<1, float>::mixed;
    int32_t region = nobody;
    for (int64_t i = begin; i < end; ++i)
      if (parts[i] != nobody) region = region == nobody || region == parts[i] ? parts[i] : mixed;
    return region;
  }
};

template <int D, typename T>
PairParticles<D, T> particles_of(Queue& queue, const PairSet<D, T>& set) {
  PairParticles<D, T> found{on_device(set.tree), nullptr, nullptr, nullptr, nullptr};
  if (set.weight.rows() > 0) {
    found.weight = set.weight;
    found.node_weight = join_nodes<AddedWeights>(queue, set.tree, found.weight);
  }
  if (set.region.rows() > 0) {
    found.region = set.region;
    found.node_region = join_nodes<JoinedRegions>(queue, set.tree, found.region);
  }
  return found;
}

template <typename T>
PairEdges<T> room_for_edges(Queue& queue, int64_t count) {
  return {queue.scratch<T>(count), queue.scratch<T>(count), queue.scratch<double>(count), static_cast<int>(count)};
}

// plane, nodes and tasks are not set.
template <int D, typename T>
PairProblem<D, T> set_up(Queue& queue, const PairCounts<D, T>& in) {
  PairProblem<D, T> problem{};
  problem.one = particles_of(queue, in.one);
  problem.other = in.self ? problem.one : particles_of(queue, in.other);
  auto* wrapped = in.self ? any_wrapped(queue, in.box, problem.one.tree)
                          : any_wrapped(queue, in.box, problem.one.tree, problem.other.tree);
  problem.setup =
      make_setup<PairSetup<D, T>>(queue, in.box, problem.one.tree, problem.other.tree, wrapped, in.mode, in.axis);
  problem.first = room_for_edges<T>(queue, in.edges.count);
  problem.second = room_for_edges<T>(queue, in.mode == PairMode::distance ? 0 : in.edges_b.count);
  problem.self = in.self;
  problem.separations = in.separations;
  Lengths second = in.edges_b;
  second.count = problem.second.count;
  queue.launch_over(in.edges.count + second.count, make_pair_edges<D, T>, problem.setup, in.edges, second,
                    problem.first, problem.second);
  return problem;
}

}  // namespace jztree
