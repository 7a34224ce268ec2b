// The pairs of a query and an image of a source within a radius of it, in lists: those of the i-th output row lie from
// splits[i] to splits[i + 1]. In a periodic box, every image of a source is a partner of its own.
#pragma once

#include "common/tree_arguments.h"

namespace jztree {

template <int D, typename T>
struct PairsWithin {
  static constexpr unsigned compiled_dims = padded_dims;

  Tree<D, T> sources;
  const int32_t* source_names;  // (n,), what each z-ordered source is called; null: by its place
  Tree<D, T> queries;
  const int32_t* query_rows;   // (q,), the output row of each z-ordered query; null: its place
  const int32_t* query_names;  // (q,), what each z-ordered query is called; null: by its output row
  Lengths radius;              // (q,) in the order of output rows, or one for all; negative: nothing
  Lengths box;
  int32_t* splits;       // (q + 1,); right if there are fewer than 2^31 pairs
  int32_t* total;        // (2,), the number of pairs: upper and lower 31 bits
  Array<int32_t> query;  // (room,), names of queries; -1 behind the last
  int32_t* index;        // (room,), names of sources; -1 behind the last
  // These three are null if nobody asks for them.
  int32_t* shift;  // (room, D), box lengths that are added to the source; 0 behind the last
  T* vector;       // (room, D), from the query to the source, so shifted; 0 behind the last
  T* distance;     // (room,), if there are vectors; infinite behind the last
  bool self;       // the sources are the queries, row by row
  bool same;       // names are of one set, in which nobody is a partner of itself, but its images are
  bool half;       // of each pair of such a set and its mirror image, only one
  bool padded;     // whether anybody looks at what is behind the last; else nothing is written there

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
        same(in.attributes().flag("same")),
        half(in.attributes().flag("half")),
        padded(in.attributes().flag("padded")) {
    in.expect(radius.count == 1 || radius.count == q(), queries.pos, 2, "query_pos", "as long as there are radii");
  }

  int64_t q() const { return queries.pos.rows(); }
  int64_t room() const { return query.dims[0]; }
  int64_t output_row(int64_t query) const { return query_rows ? query_rows[query] : query; }
  int64_t source_name(int64_t source) const { return source_names ? source_names[source] : source; }
  int64_t query_name(int64_t query) const { return query_names ? query_names[query] : output_row(query); }
};

}  // namespace jztree
