// The minimum spanning tree of particles, with Euclidean or mutual reachability distances as lengths of edges.
//
// Edges are ordered by squared length, then by the smaller row of their ends, then by the larger row. (Lengths would
// not do: squares that differ may have the same root, but friends-of-friends compares squares.) No two edges are equal
// in this order, so exactly one tree is the smallest, and its edges do not depend on how they are found.
//
// Sources: O. Boruvka (1926), "O jistem problemu minimalnim" (every set of joined particles takes its shortest outgoing
// edge); W. B. March, P. Ram and A. G. Gray (2010), "Fast Euclidean minimum spanning tree: algorithm, analysis, and
// applications" (trees that skip nodes within one set); A. Prokopenko et al. (2022), "A single-tree algorithm to
// compute the Euclidean minimum spanning tree on GPUs", arXiv 2207.00514 (bounds from near particles, shared by a set);
// R. J. G. B. Campello, D. Moulavi and J. Sander (2013), "Density-based clustering based on hierarchical density
// estimates" (mutual reachability).
//
// The particles may be a part of a larger set: those of a rank and its ghosts. The edges are then those of the tree of
// this part, and an edge is `certain` if it is also in the tree of the whole set. This holds for the first outgoing
// edge of a set of particles if no particle of the set has an unknown particle as near as the length of this edge;
// ghosts may have unknown particles at any distance. It also holds for edges of length 0. With `label`, the edges join
// sets of particles that are joined already.
#pragma once

#include <algorithm>

#include "common/scale.h"
#include "common/tree_arguments.h"

namespace jztree {

// What the order of edges depends on, besides positions.
template <int D, typename T>
struct EdgeParticles {
  const T* pos;             // (n, D)
  const int32_t* core_row;  // (n,), z-ordered row at the core distance of each; null: Euclidean lengths, or core_place
  const int32_t* rows;      // (n,), the output row of each z-ordered particle; null: its index
  const T* core_place;      // (n, D), the position at the core distance of each; null: that of core_row
  const int32_t* core_id;   // (n,), output row of the particle there; null: that of core_row
  const int32_t* label;     // (n,), the first row of the set of each row at the start; null: each row is a set
  const T* known;           // (n,), no particle outside the tree is nearer; negative: a ghost; null: none is outside
  const T* domain;          // (2, D), the corners of the whole set; null: those of the tree

  EdgeParticles(Arguments& in, const Array<const T>& positions)
      : pos(positions),
        core_row(in.optional<int32_t>("core_row", {positions.rows()})),
        rows(in.optional<int32_t>("rows", {positions.rows()})),
        core_place(in.optional<T>("core_place", {positions.rows(), D})),
        core_id(in.optional<int32_t>("core_id", {positions.rows()})),
        label(in.optional<int32_t>("label", {positions.rows()})),
        known(in.optional<T>("known", {positions.rows()})),
        domain(in.optional<T>("domain", {2, D})) {}

  bool has_core() const { return core_row || core_place; }
  JZTREE_BOTH int32_t output_row(int64_t row) const { return rows ? rows[row] : static_cast<int32_t>(row); }
  JZTREE_BOTH const T* place(int64_t row) const { return pos + row * D; }
  JZTREE_BOTH bool is_ghost(int64_t row) const { return known && known[row] < 0; }

  // The position, and the output row, of the particle at the core distance of a row.
  JZTREE_BOTH const T* core_of(int64_t row) const {
    return core_place ? core_place + row * D : pos + int64_t{core_row[row]} * D;
  }
  JZTREE_BOTH int32_t core_id_of(int64_t row) const { return core_id ? core_id[row] : output_row(core_row[row]); }

  // The span that determines the scale on all ranks.
  JZTREE_BOTH OpenSpan domain_span(const double* period) const {
    OpenSpan span;
    for (int d = 0; d < D; ++d)
      if (!(period[d] > 0)) span.include(static_cast<double>(domain[d]), static_cast<double>(domain[D + d]));
    return span;
  }
};

template <int D, typename T>
struct SpanningTree {
  Tree<D, T> tree;
  // (n, k), the k nearest other z-ordered rows of each; after the last: -1; -2 in the first column: unknown
  Array<const int32_t> near;
  EdgeParticles<D, T> particles;
  Lengths box;
  // (n - 1, 2) each, from the number of edges on: -1 and infinity
  int32_t* ends;     // output rows, the smaller one first
  T* length;         // (n - 1,)
  uint32_t* exact;   // the least linking length in float64 that links the ends: low and high word
  int32_t* measure;  // output rows whose distance is the length; null without core distances
  // Results for a part of a set; null without `known`.
  uint32_t* weight;  // (n - 1, 2), squared lengths in the unit of `domain`, whose order is that of edges
  int32_t* places;   // (n - 1, 2), z-ordered rows of the ends
  int32_t* certain;  // (n - 1,), 1: certain, and no other rank has it as a certain edge
  int32_t* joined;   // (n,), the first row of the particles of this rank that certain edges join

  explicit SpanningTree(Arguments& in)
      : tree(in),
        near(in.argument<int32_t>("near", {n(), any})),
        particles(in, tree.pos),
        box(in.lengths("box", D)),
        ends(in.result<int32_t>("ends", {edges(), 2})),
        length(in.result<T>("length", {edges()})),
        exact(in.result<uint32_t>("exact", {edges(), 2})),
        measure(in.result_if<int32_t>(in.attributes().flag("reachability"), "measure", edges(), 2)),
        weight(in.result_if<uint32_t>(partial(in), "weight", edges(), 2)),
        places(in.result_if<int32_t>(partial(in), "places", edges(), 2)),
        certain(in.result_if<int32_t>(partial(in), "certain", edges())),
        joined(in.result_if<int32_t>(partial(in), "joined", n())) {}

  int64_t n() const { return tree.pos.rows(); }
  int64_t edges() const { return std::max<int64_t>(n() - 1, 0); }
  // Whether the results of an edge depend on the z-ordered rows of its ends.
  bool needs_places() const { return measure || places; }

 private:
  static bool partial(Arguments& in) { return in.attributes().flag("partial"); }
};

}  // namespace jztree
