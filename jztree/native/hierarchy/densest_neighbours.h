// The densest neighbour of each particle on a graph.
#pragma once

#include "ranked_graph.h"

namespace jztree {

struct DensestNeighbours {
  RankedGraph graph;
  int32_t* densest;  // (n,), the row of the densest neighbour, or the row itself if none is denser

  explicit DensestNeighbours(Arguments& in) : graph(in), densest(in.result<int32_t>("densest", {graph.rows})) {}

  // Rank and row of a particle as one number, in the order of ranks.
  JZTREE_BOTH uint64_t particle(int64_t row) const {
    return static_cast<uint64_t>(static_cast<uint32_t>(graph.rank[row])) << 32 | static_cast<uint64_t>(row);
  }
  JZTREE_BOTH static int32_t row_of(uint64_t particle) { return static_cast<int32_t>(particle & 0xffffffff); }
};

}  // namespace jztree
