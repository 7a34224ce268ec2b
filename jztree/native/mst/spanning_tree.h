// The minimum spanning tree of particles, with Euclidean or mutual reachability distances as lengths of edges.
//
// Edges are ordered by length, then by the smaller row of their ends, then by the larger row. No two edges are equal in
// this order, so exactly one tree is the smallest, and its edges do not depend on how they are found.
//
// Sources: O. Boruvka (1926), "O jistem problemu minimalnim" (every set of joined particles takes its shortest outgoing
// edge); W. B. March, P. Ram and A. G. Gray (2010), "Fast Euclidean minimum spanning tree: algorithm, analysis, and
// applications" (trees that skip nodes within one set); A. Prokopenko et al. (2022), "A single-tree algorithm to
// compute the Euclidean minimum spanning tree on GPUs", arXiv 2207.00514 (bounds from near particles, shared by a set);
// R. J. G. B. Campello, D. Moulavi and J. Sander (2013), "Density-based clustering based on hierarchical density
// estimates" (mutual reachability).
#pragma once

#include <algorithm>

#include "common/tree_arguments.h"

namespace jztree {

template <int D, typename T>
struct SpanningTree {
  static constexpr unsigned compiled_dims = padded_dims;

  Tree<D, T> tree;
  Array<const int32_t> near;  // (n, k), the k nearest other z-ordered rows of each; after the last: -1
  const int32_t* core_row;    // (n,), z-ordered row at the core distance of each; null: Euclidean lengths
  const int32_t* rows;        // (n,), the output row of each z-ordered particle; null: its index
  Lengths box;
  // (n - 1, 2) each, from the number of edges on: -1 and infinity
  int32_t* ends;     // output rows, the smaller one first
  T* length;         // (n - 1,)
  uint32_t* exact;   // the least linking length in float64 that links the ends: low and high word
  int32_t* measure;  // output rows whose distance is the length; null without core_row

  explicit SpanningTree(Arguments& in)
      : tree(in),
        near(in.argument<int32_t>("near", {n(), any})),
        core_row(in.optional<int32_t>("core_row", {n()})),
        rows(in.optional<int32_t>("rows", {n()})),
        box(in.lengths("box", D)),
        ends(in.result<int32_t>("ends", {edges(), 2})),
        length(in.result<T>("length", {edges()})),
        exact(in.result<uint32_t>("exact", {edges(), 2})),
        measure(in.result_if<int32_t>(in.attributes().flag("reachability"), "measure", edges(), 2)) {}

  int64_t n() const { return tree.pos.rows(); }
  int64_t edges() const { return std::max<int64_t>(n() - 1, 0); }
  JZTREE_BOTH int32_t output_row(int64_t row) const { return rows ? rows[row] : static_cast<int32_t>(row); }
};

}  // namespace jztree
