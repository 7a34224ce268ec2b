// Lists all pairs of a query and an image of a source within the query's radius. The pairs of output row i are at
// splits[i] to splits[i + 1]. In a periodic box, every image of a source is a separate partner.
#pragma once

#include "common/tree_arguments.h"

namespace jztree {

template <int D, typename T>
struct PairsWithin {
  static constexpr unsigned compiled_dims = padded_dims;

  Tree<D, T> sources;
  const int32_t* source_names;  // (n,), the name of each z-ordered source; null: its index
  Tree<D, T> queries;
  const int32_t* query_rows;   // (q,), the output row of each z-ordered query; null: its index
  const int32_t* query_names;  // (q,), the name of each z-ordered query; null: its output row
  Lengths radius;              // (q,) in output order, or a single one for all; negative: no pairs
  Lengths box;
  int32_t* splits;       // (q + 1,); correct if there are fewer than 2^31 pairs
  int32_t* total;        // (2,), the number of pairs: upper and lower 31 bits
  Array<int32_t> query;  // (capacity,), names of queries; -1 after the last pair
  int32_t* index;        // (capacity,), names of sources; -1 after the last pair
  // The next three are null if they are not requested.
  int32_t* shift;  // (capacity, D), box lengths to add to the source; 0 after the last pair
  T* vector;       // (capacity, D), from the query to the shifted source; 0 after the last pair
  T* distance;     // (capacity,), present if there are vectors; infinite after the last pair
  bool self;       // the sources are the queries, row by row
  bool one_set;    // names are from one set; a particle pairs with its images, but not with itself
  bool half;       // list only one of each pair in such a set and its mirror image
  bool padded;     // write the padding after the last pair; otherwise nothing is written there

  explicit PairsWithin(Arguments& in)
      : sources(in),
        source_names(in.optional<int32_t>("source_names", {sources.pos.rows()})),
        queries(in, "query_"),
        query_rows(in.optional<int32_t>("query_rows", {q()})),
        query_names(in.optional<int32_t>("query_names", {q()})),
        radius(in.lengths("radius", any)),
        box(in.lengths("box", D)),
        splits(in.result<int32_t>("splits", {q() + 1})),
        total(in.result<int32_t>("total", {2})),
        query(in.result<int32_t>("query", {any})),
        index(in.result<int32_t>("index", {room()})),
        shift(in.result_if<int32_t>(in.attributes().flag("shifts"), "shift", room(), D)),
        vector(in.result_if<T>(in.attributes().flag("vectors"), "vector", room(), D)),
        distance(in.result_if<T>(in.attributes().flag("vectors"), "distance", room())),
        self(in.attributes().flag("self")),
        one_set(in.attributes().flag("same")),
        half(in.attributes().flag("half")),
        padded(in.attributes().flag("padded")) {
    in.expect(radius.count == 1 || radius.count == q(), queries.pos, 2, "query_pos", "of the length of radius");
  }

  int64_t q() const { return queries.pos.rows(); }
  int64_t room() const { return query.dims[0]; }
  int64_t output_row(int64_t query) const { return query_rows ? query_rows[query] : query; }
  int64_t source_name(int64_t source) const { return source_names ? source_names[source] : source; }
  int64_t query_name(int64_t query) const { return query_names ? query_names[query] : output_row(query); }
};

}  // namespace jztree
