// Finds the leaves of queries that may have neighbours on other ranks, and the radius that each of the rank's boxes
// still needs.
//
// Every rank publishes boxes of its sources with the number of sources in each. It then computes, for each box of its
// queries, the radius within which the queries need sources of other ranks. Distances are in float64 and radii are
// enlarged by the possible rounding errors, so no needed source is left out.
#pragma once

#include "boxes.h"

namespace jztree {

template <int D, typename T>
struct OpenLeaves {
  BoxedRuns<D, T> leaves, own;  // of the queries, and the boxes that want ghosts
  Array<const T> radius;        // (q, k); the last column is the search radius of each query
  const int32_t* rows;          // row of each z-ordered query in `radius`; null: its index
  PublishedBoxes<D, T> sources;
  const int32_t* source_counts;
  PublishedBoxes<D, T> close;  // more detailed boxes of a few ranks; only used for `enough`
  const int32_t *close_counts, *rank;
  Lengths box;
  int32_t* open;   // one per leaf
  T* wanted;       // one per box of the rank; -1 if none of its queries needs another rank
  int64_t enough;  // the number of sources that a query needs

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
