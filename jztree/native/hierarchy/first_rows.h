// The smallest row of each cluster of a dendrogram (dendrogram.h).
#pragma once

#include "common/arguments.h"
#include "common/portable.h"

namespace jztree {

struct ClusterRows {
  Array<const int32_t> children;  // (m, 2), the clusters that each edge joins
  Count num;                      // of edges
  int64_t rows;                   // of particles
  int32_t* first;                 // (m,), the smallest row of the cluster; after the last: -1

  explicit ClusterRows(Arguments& in)
      : children(in.argument<int32_t>("children", {any, 2})),
        num(in.count("num", children.rows())),
        rows(in.attributes().integer("rows")),
        first(in.result<int32_t>("first", {children.rows()})) {}
};

// Whether the children of an edge are rows, or clusters of earlier edges.
JZTREE_BOTH inline bool has_clusters(const int32_t* children, int64_t edge, int64_t rows) {
  const int64_t a = children[2 * edge], b = children[2 * edge + 1];
  return a >= 0 && a < rows + edge && b >= 0 && b < rows + edge;
}

}  // namespace jztree
