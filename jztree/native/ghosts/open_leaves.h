// Which leaves of queries may have neighbours on other ranks, and the radius that each of the rank's boxes still needs.
//
// Every rank publishes boxes of its sources, with how many are in each, and finds out for boxes of its queries the
// radius that these still have to look into. Distances are in float64 and radii are enlarged by what rounding may have
// taken off, so nothing that is needed is left out.
#pragma once

#include "boxes.h"

namespace jztree {

template <int D, typename T>
struct OpenLeaves {
  static constexpr unsigned compiled_dims = padded_dims;

  BoxedRuns<D, T> leaves, own;  // of the queries, and those that want ghosts
  Array<const T> radius;        // (q, k), whose last column is how far each query has to look
  const int32_t* rows;          // where in it each z-ordered query is; null: at its place
  PublishedBoxes<D, T> sources;
  const int32_t* source_counts;
  PublishedBoxes<D, T> close;  // of a few ranks, known better; for `enough` alone
  const int32_t *close_counts, *rank;
  Lengths box;
  int32_t* open;   // one a leaf
  T* wanted;       // one a box of the rank; -1 if none of its queries needs another rank
  int64_t enough;  // so many sources are all that a query needs

  explicit OpenLeaves(Arguments& in)
      : leaves(in, "leaf_"),
        own(in, "own_"),
        radius(in.argument<T>("radius", {any, any})),
        rows(in.optional<int32_t>("rows", {radius.rows()})),
        sources(in, "source_"),
        source_counts(in.argument<int32_t>("source_counts", {sources.ranks, sources.per_rank})),
        close(in, "close_"),
        close_counts(in.argument<int32_t>("close_counts", {close.ranks, close.per_rank})),
        rank(in.number("rank")),
        box(in.lengths("box", D)),
        open(in.result<int32_t>("open", {leaves.count})),
        wanted(in.result<T>("wanted", {own.count})),
        enough(in.attributes().integer("enough")) {
    in.expect(k() > 0, radius, 2, "radius", "of at least one column");
  }

  int64_t queries() const { return radius.rows(); }
  int64_t k() const { return radius.dims[1]; }
};

}  // namespace jztree
