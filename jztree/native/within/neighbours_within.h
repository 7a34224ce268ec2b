// Lists the sources within a radius of every query, in rows of any length. The sources of output row i are at splits[i]
// to splits[i + 1].
#pragma once

#include "common/tree_arguments.h"

namespace jztree {

template <int D, typename T>
struct NeighboursWithin {
  static constexpr unsigned compiled_dims = padded_dims;

  Tree<D, T> sources;
  const int32_t* source_rows;  // (n,), the row to report for each z-ordered source; null: its index
  Tree<D, T> queries;
  const int32_t* query_rows;  // (q,), the output row of each z-ordered query; null: its index
  Lengths radius;             // (q,) in output order, or a single one for all; negative: no neighbours
  Lengths box;
  int32_t* splits;       // (q + 1,); correct if there are fewer than 2^31 neighbours
  int32_t* total;        // (2,), the number of neighbours: upper and lower 31 bits
  Array<int32_t> index;  // (capacity,), nearest first if `sorted`, otherwise in source order; -1 after the last
  T* distance;           // (capacity,); infinite after the last
  bool self;             // the sources are the queries, row by row
  bool sorted;
  bool padded;  // write the padding after the last neighbour; otherwise nothing is written there

  explicit NeighboursWithin(Arguments& in)
      : sources(in),
        source_rows(in.optional<int32_t>("source_rows", {sources.pos.rows()})),
        queries(in, "query_"),
        query_rows(in.optional<int32_t>("query_rows", {q()})),
        radius(in.lengths("radius", any)),
        box(in.lengths("box", D)),
        splits(in.result<int32_t>("splits", {q() + 1})),
        total(in.result<int32_t>("total", {2})),
        index(in.result<int32_t>("index", {any})),
        distance(in.result<T>("distance", {room()})),
        self(in.attributes().flag("self")),
        sorted(in.attributes().flag("sorted")),
        padded(in.attributes().flag("padded")) {
    in.expect(radius.count == 1 || radius.count == q(), queries.pos, 2, "query_pos", "of the length of radius");
  }

  int64_t q() const { return queries.pos.rows(); }
  int64_t room() const { return index.dims[0]; }
  int64_t output_row(int64_t query) const { return query_rows ? query_rows[query] : query; }
};

}  // namespace jztree
