// Exact k nearest neighbours of z-ordered queries among z-ordered sources. Ties are broken by the lower row in z-order.
// A query that is a source is either its own first neighbour or is excluded. The distances may have a limit.
#pragma once

#include "common/tree_arguments.h"

namespace jztree {

template <int D, typename T>
struct Neighbours {
  static constexpr unsigned compiled_dims = padded_dims | 1u << 6;  // for phase space

  RowTree<D, T> sources;      // with the rows to report
  RowTree<D, T> queries;      // with output rows
  const int32_t* own_offset;  // query i is source i + own_offset; negative: no query is a source
  const int32_t* open;        // the leaves of queries to search again; null: all leaves, for the first time
  Lengths box;
  Lengths limit;    // (q,) in output order, a single one for all, or none; negative: no neighbours
  const T* domain;  // (2, D), the corners of the set of sources and queries; null: computed from them
  // Continued: the queries of leaves that are not open keep their values. The queries of open leaves have the answers
  // of an earlier search of a part of the sources, which give upper limits of the k-th distances.
  Array<T> radius;       // (q, k), continued; (q, 0): not wanted
  Array<int32_t> index;  // (q, k), continued
  bool self;             // the sources are the queries, row by row
  bool exclude_self;     // a query that is a source is not its own neighbour

  explicit Neighbours(Arguments& in)
      : sources(in, "", "source_rows"),
        queries(in, "query_", "query_rows"),
        own_offset(in.number("own_offset")),
        open(in.optional<int32_t>("open", {queries.layout.sizes[0]})),
        box(in.lengths("box", D)),
        limit(in.lengths("limit", any)),
        domain(in.optional<T>("domain", {2, D})),
        radius(in.continued<T>("radius", {q(), any})),
        index(in.continued<int32_t>("index", {q(), any})),
        self(in.attributes().flag("self")),
        exclude_self(in.attributes().flag("others")) {
    in.expect(limit.count <= 1 || limit.count == q(), queries.pos, 2, "query_pos", "of the length of limit");
    in.expect(radii() || !open, radius, 2, "radius", "with bounds for the search again");
    in.expect(radius.dims[1] == (radii() ? k() : 0), radius, 2, "radius", "of the width of index");
  }

  int64_t q() const { return queries.pos.rows(); }
  int64_t k() const { return index.dims[1]; }
  // Null if not wanted.
  T* radii() const { return radius.dims[1] > 0 ? static_cast<T*>(radius) : nullptr; }
};

}  // namespace jztree
