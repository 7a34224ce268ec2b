// Counts the sources within some radii of every query, and sums their weights.
#pragma once

#include "common/tree_arguments.h"

namespace jztree {

template <int D, typename T>
struct CountWithin {
  Tree<D, T> sources;
  Array<const T> weight;  // (n,), of z-ordered sources; no rows: only counts are requested
  RowTree<D, T> queries;  // with output rows
  Lengths radius;         // (q, m) in output order, or (1, m) for all, ascending; negative: no sources
  Lengths box;
  Array<int32_t> count;  // (q, m); 0 for queries from num on
  Array<T> sum;          // (q, m), or no rows
  bool self;             // the sources are the queries, row by row

  explicit CountWithin(Arguments& in)
      : sources(in),
        weight(in.argument<T>("weight", {any})),
        queries(in, "query_", "query_rows"),
        radius(in.lengths("radius", any)),
        box(in.lengths("box", D)),
        count(in.result<int32_t>("count", {q(), any})),
        sum(in.result<T>("sum", {weighted() ? q() : 0, m()})),
        self(in.attributes().flag("self")) {
    in.expect(!weighted() || weight.rows() == sources.pos.rows(), weight, 1, "weight",
              "of the length of pos, or empty");
    in.expect(radius.count == m() || radius.count == q() * m(), count, 2, "count",
              "of one column per radius, with radii for all queries or for each");
  }

  int64_t q() const { return queries.pos.rows(); }
  int64_t m() const { return count.dims[1]; }
  bool weighted() const { return weight.rows() > 0; }
  // The first of the radii of an output row.
  JZTREE_BOTH static int64_t first_radius(int64_t radii, int64_t m, int64_t row) { return radii > m ? row * m : 0; }
};

}  // namespace jztree
