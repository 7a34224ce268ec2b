// The sources within a radius of every query, listed in rows of any length. The list of output row i is at splits[i] to
// splits[i + 1].
#pragma once

#include "common/tree_arguments.h"

namespace jztree {

template <int D, typename T>
struct ListsWithin {
  RowTree<D, T> sources;  // with the rows to list
  RowTree<D, T> queries;  // with output rows
  Lengths radius;         // (q,) in output order, or a single one for all; negative: no sources
  Lengths box;
  int32_t* splits;  // (q + 1,); correct if the lists have fewer than 2^31 entries
  int32_t* total;   // (2,), the number of entries: upper and lower 31 bits
  bool self;        // the sources are the queries, row by row
  bool padded;      // write the padding after the last entry; otherwise nothing is written there

  ListsWithin(Arguments& in, const char* name_of_source_rows)
      : sources(in, "", name_of_source_rows),
        queries(in, "query_", "query_rows"),
        radius(in.lengths("radius", any)),
        box(in.lengths("box", D)),
        splits(in.result<int32_t>("splits", {q() + 1})),
        total(in.result<int32_t>("total", {2})),
        self(in.attributes().flag("self")),
        padded(in.attributes().flag("padded")) {
    in.expect(radius.count == 1 || radius.count == q(), queries.pos, 2, "query_pos", "of the length of radius");
  }

  int64_t q() const { return queries.pos.rows(); }
};

}  // namespace jztree
