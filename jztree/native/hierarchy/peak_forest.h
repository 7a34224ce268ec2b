// The edges that join the peaks of a density on a graph, from the highest level down.
//
// Particles have ranks: the densest has rank 0, and no two have the same. Every particle that is not a peak climbs to
// its densest neighbour (densest_neighbours.h), until it arrives at a peak. An edge of the graph between particles of
// different peaks joins these at the density of its sparser end. The edges that join peaks for the first time, when
// edges are taken in the order of their sparser and then of their denser end, form a forest: the maximum spanning
// forest of the peaks.
//
// Source: F. Chazal, L. Guibas, S. Oudot and P. Skraba (2013), "Persistence-based clustering in Riemannian manifolds".
// The forest comes from O. Boruvka (1926): in each round, every set of joined peaks takes its first edge to another.
#pragma once

#include "ranked_graph.h"

namespace jztree {

struct PeakForest {
  RankedGraph graph;    // ranks from 0 to num - 1
  const int32_t* peak;  // (n,), a row that represents the peak of each row, and its own peak
  int32_t* ends;        // (m, 2), ranks of the ends of each edge in order, the larger first; after the last: -1
  int32_t* count;       // of edges

  explicit PeakForest(Arguments& in)
      : graph(in),
        peak(in.argument<int32_t>("peak", {graph.rows})),
        ends(in.result<int32_t>("ends", {edges(), 2})),
        count(in.result<int32_t>("count", {})) {}

  int64_t edges() const { return graph.rows > 0 ? graph.rows - 1 : 0; }
};

// Edges in their order: the rank of the sparser end in the high half, the rank of the denser end in the low half.
constexpr uint64_t no_edge = ~uint64_t{0};
JZTREE_BOTH inline uint64_t edge_between(int32_t a, int32_t b) {
  const auto sparser = static_cast<uint64_t>(a > b ? a : b), denser = static_cast<uint64_t>(a > b ? b : a);
  return sparser << 32 | denser;
}
JZTREE_BOTH inline int32_t sparser_end(uint64_t edge) { return static_cast<int32_t>(edge >> 32); }
JZTREE_BOTH inline int32_t denser_end(uint64_t edge) { return static_cast<int32_t>(edge & 0xffffffff); }

}  // namespace jztree
