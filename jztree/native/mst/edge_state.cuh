// The state of Boruvka's algorithm on a GPU; see edge_sets.h, which holds the same on a CPU.
#pragma once

#include <cstdint>

#include "common/cuda/boxes.cuh"
#include "common/cuda/loads.cuh"
#include "common/cuda/share.cuh"
#include "common/cuda/tree.cuh"
#include "edge_rule.h"
#include "fof/union_find.cuh"
#include "spanning_tree.h"

namespace jztree {

constexpr int32_t many_sets = -1;

template <int D, typename T>
struct EdgeSetup : BoxSetup<D, T> {
  EdgeRule<D, T> rule;

  __device__ EdgeSetup(const Lengths& box, const EdgeParticles<D, T>& in, const DeviceTree<D, T>& tree,
                       const int32_t* any_wrapped)
      : BoxSetup<D, T>(box, tree, tree, any_wrapped), rule(this->distance_rule()) {
    if (!in.domain) return;
    double period[D];
    box.read(period);
    this->scale = Scale<D, T>(period, in.domain_span(period).template for_scale<T>());
    for (int d = 0; d < D; ++d) this->gap_period[d] = this->scale.period[d] * below_one<T>;
    rule = EdgeRule<D, T>(this->distance_rule());
  }
};

template <int D, typename T>
struct EdgeState {
  DeviceTree<D, T> tree;
  const EdgeSetup<D, T>* setup;
  EdgeParticles<D, T> in;
  const int32_t* near;
  int64_t k;
  UnionFind joined;
  UnionFind certain;       // the rank's particles that certain edges join; null if all particles are in the tree
  int32_t* set;            // [row], the smallest row of its set
  int32_t* nodes;          // [node], the set of its rows, or many_sets
  int32_t* to;             // [row], the other end of its lightest known edge to another set; -1: none
  uint8_t* is_lightest;    // [row], whether its edge `to` is surely the lightest one to another set
  uint8_t* absent;         // [row], whether the row takes no part in the rounds, because an equal point represents it
  double* floor;           // [row], no edge to another set weighs less
  double* core;            // [row], weight of the core distance; null: Euclidean lengths
  uint64_t* least_weight;  // [set], bits of the least weight of an edge to another set
  uint64_t* next_least_weight;  // [set], the same in the next round
  uint64_t* pair;               // [set], the least pair of rows of such an edge with this weight
  uint64_t* unknown;  // [set], bits of a weight: edges to particles outside the tree weigh more; null: there are none
  uint64_t* weights;  // [edge], bits
  uint64_t* pairs;    // [edge]
  Link* links;        // [edge]
  int32_t* count;     // of edges, and of rows that an initial set contains besides its first row

  __device__ int64_t num() const { return tree.num(); }
  __device__ bool is_done() const { return *count >= num() - 1; }
  __device__ const T* pos(int64_t row) const { return tree.pos + row * D; }
  __device__ int32_t output_row(int64_t row) const { return in.output_row(row); }

  __device__ double weight(int64_t a, int64_t b) const {
    double weight = setup->rule.weight(pos(a), pos(b));
    if (core) weight = larger(weight, larger(core[a], core[b]));
    return weight;
  }

  __device__ uint64_t rows_of(int64_t a, int64_t b) const { return pair_of(output_row(a), output_row(b)); }
  __device__ double least_of(int32_t of_set) const { return weight_of_bits(load_relaxed(least_weight + of_set)); }
  __device__ void offer(int32_t of_set, double weight) const { lower(least_weight + of_set, bits_of_weight(weight)); }

  // Whether a row may have an edge with the least weight of its set.
  __device__ bool is_open(int64_t row) const { return !absent[row] && floor[row] <= least_of(set[row]); }

  // Whether the lightest edge of a set, with this weight, is lighter than all edges to particles outside the tree.
  __device__ bool is_certain(int32_t of_set, double weight) const {
    return !unknown || bits_of_weight(weight) < unknown[of_set];
  }

  // Store an edge and join its ends.
  __device__ void add(double weight, int32_t from, int32_t to_row, bool is_certain_edge) const {
    const int32_t place = atomicAdd(count, 1);
    weights[place] = bits_of_weight(weight);
    pairs[place] = rows_of(from, to_row);
    links[place] = Link(from, to_row, is_certain_edge);
    joined.unite(from, to_row);
  }

  // Add the lightest edge of a set. Another rank may have found the same edge if one end is a ghost.
  __device__ void add_lightest(double weight, int32_t from, int32_t to_row, bool is_certain_edge) const {
    is_certain_edge = is_certain_edge && !in.is_ghost(from) && !in.is_ghost(to_row);
    add(weight, from, to_row, is_certain_edge);
    if (is_certain_edge && unknown) certain.unite(from, to_row);
  }
};

}  // namespace jztree
