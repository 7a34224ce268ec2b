// The dendrogram of a spanning tree: edges join clusters, shortest edge first. Clusters are numbered: those of single
// rows by the row, and the cluster that edge e forms by the number of rows plus e. R. Sibson (1973), "SLINK: an
// optimally efficient algorithm for the single-link cluster method".
#pragma once

#include "common/arguments.h"
#include "tree_edges.h"

namespace jztree {

struct TreeClusters {
  Array<const int32_t> ends;  // (m, 2), rows of the ends of edges, shortest edge first
  Count num;                  // of edges
  int64_t rows;               // of particles
  int32_t* children;          // (m, 2), the clusters of both ends of each edge; after the last: -1
  int32_t* count;             // (m,), the number of rows of the cluster; after the last: 0

  explicit TreeClusters(Arguments& in)
      : ends(in.argument<int32_t>("ends", {any, 2})),
        num(in.count("num", ends.rows())),
        rows(in.attributes().integer("rows")),
        children(in.result<int32_t>("children", {ends.rows(), 2})),
        count(in.result<int32_t>("count", {ends.rows()})) {}
};

}  // namespace jztree
