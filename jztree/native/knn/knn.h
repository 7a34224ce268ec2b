// Exact k nearest neighbours of z-ordered queries among z-ordered sources. Ties are broken by the lower row in z-order,
// and a query that is a source is its own first neighbour, or none of its own. There may be a limit to how far they
// are.
#pragma once

#include "common/tree_arguments.h"

namespace jztree {

template <int D, typename T>
struct Neighbours {
  static constexpr unsigned compiled_dims = padded_dims;

  Tree<D, T> sources;
  const int32_t* source_rows;  // (n,), the row to report for each z-ordered source; null: its place
  Tree<D, T> queries;
  const int32_t* query_rows;  // (q,), the output row of each z-ordered query; null: its place
  const int32_t* own_offset;  // query i is source i + own_offset; negative: queries are no sources
  const int32_t* open;        // which leaves of queries are searched again; null: all are, and for the first time
  Lengths box;
  Lengths limit;    // (q,) in the order of output rows, one for all, or none; negative: nothing is within
  const T* domain;  // (2, D), the corners of the set that sources and queries are part of; null: of theirs
  // Continued: leaves that are not open keep what they have. Those that are have an answer among the queries (if these
  // are sources) or some of the sources, which tells how far away the k-th is at most.
  Array<T> radius;  // (q, k), continued
  int32_t* index;   // (q, k), continued
  bool self;        // the sources are the queries, row by row
  bool others;      // a query that is a source is none of its own neighbours

  explicit Neighbours(Arguments& in)
      : sources(in),
        source_rows(in.optional<int32_t>("source_rows", {sources.pos.rows()})),
        queries(in, "query_"),
        query_rows(in.optional<int32_t>("query_rows", {q()})),
        own_offset(in.number("own_offset")),
        open(in.optional<int32_t>("open", {queries.layout.sizes[0]})),
        box(in.lengths("box", D)),
        limit(in.lengths("limit", any)),
        domain(in.optional<T>("domain", {2, D})),
        radius(in.continued<T>("radius", {q(), any})),
        index(in.continued<int32_t>("index", {q(), k()})),
        self(in.attributes().flag("self")),
        others(in.attributes().flag("others")) {
    in.expect(limit.count <= 1 || limit.count == q(), queries.pos, 2, "query_pos", "as long as there are limits");
  }

  int64_t q() const { return queries.pos.rows(); }
  int64_t k() const { return radius.dims[1]; }
  int64_t output_row(int64_t query) const { return query_rows ? query_rows[query] : query; }
};

}  // namespace jztree
