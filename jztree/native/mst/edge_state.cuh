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

  __device__ EdgeSetup(const Lengths& box, const DeviceTree<D, T>& tree, const int32_t* any_wrapped)
      : BoxSetup<D, T>(box, tree, tree, any_wrapped), rule(this->distance_rule()) {}
};

// Other threads of the launch lower this word too.
__device__ inline void lower(uint64_t* place, uint64_t value) {
  if (value < load_relaxed(place)) atomicMin(reinterpret_cast<unsigned long long*>(place), value);
}

template <int D, typename T>
struct EdgeState {
  DeviceTree<D, T> tree;
  const EdgeSetup<D, T>* setup;
  const int32_t *near, *core_row, *rows;
  int64_t k;
  UnionFind joined;
  int32_t* set;       // [row], the smallest row of its set
  int32_t* nodes;     // [node], the set of its rows, or many_sets
  int32_t* to;        // [row], the other end of its lightest known edge to another set; -1: none
  uint8_t* sure;      // [row], whether its edge `to` is surely the lightest one to another set
  uint8_t* absent;    // [row], whether the row takes no part in the rounds, because an equal point represents it
  double* floor;      // [row], a weight below which it has no edge to another set
  double* core;       // [row], weight of the core distance; null: Euclidean lengths
  uint64_t* least;    // [set], bits of the least weight of an edge to another set
  uint64_t* pair;     // [set], the least pair of rows of such an edge with this weight
  uint64_t* weights;  // [edge], bits
  uint64_t* pairs;    // [edge]
  int32_t* count;     // of edges

  __device__ int64_t num() const { return tree.num(); }
  __device__ bool is_done() const { return *count >= num() - 1; }
  __device__ const T* pos(int64_t row) const { return tree.pos + row * D; }
  __device__ int32_t output_row(int64_t row) const { return rows ? rows[row] : static_cast<int32_t>(row); }

  __device__ double weight(int64_t a, int64_t b) const {
    double weight = setup->rule.weight(pos(a), pos(b));
    if (core) weight = larger(weight, larger(core[a], core[b]));
    return weight;
  }

  __device__ uint64_t rows_of(int64_t a, int64_t b) const { return pair_of(output_row(a), output_row(b)); }
  __device__ double least_of(int32_t of_set) const { return weight_of_bits(load_relaxed(least + of_set)); }
  __device__ void offer(int32_t of_set, double weight) const { lower(least + of_set, bits_of_weight(weight)); }

  // Whether a row may have an edge with the least weight of its set.
  __device__ bool is_open(int64_t row) const { return !absent[row] && floor[row] <= least_of(set[row]); }

  // Store an edge and join its ends.
  __device__ void add(double weight, int64_t from, int64_t to_row, uint64_t ends) const {
    const int32_t place = atomicAdd(count, 1);
    weights[place] = bits_of_weight(weight);
    pairs[place] = ends;
    joined.unite(static_cast<int32_t>(from), static_cast<int32_t>(to_row));
  }
};

}  // namespace jztree
