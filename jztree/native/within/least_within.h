// For each query, the smallest value of the sources within a radius.
#pragma once

#include <limits>

#include "common/tree_arguments.h"

namespace jztree {

template <int D, typename T>
struct LeastWithin {
  static constexpr unsigned compiled_dims = padded_dims | 1u << 4;
  static constexpr int32_t none = std::numeric_limits<int32_t>::max();

  Tree<D, T> sources;
  const int32_t* value;   // (n,), of z-ordered sources
  RowTree<D, T> queries;  // with output rows
  Lengths radius;         // a single one for all
  Lengths box;
  int32_t* minima;  // (q,); `none` if no source is within, and for queries from num on

  explicit LeastWithin(Arguments& in)
      : sources(in),
        value(in.argument<int32_t>("value", {sources.pos.rows()})),
        queries(in, "query_", "query_rows"),
        radius(in.lengths("radius", 1)),
        box(in.lengths("box", D)),
        minima(in.result<int32_t>("minima", {q()})) {}

  int64_t q() const { return queries.pos.rows(); }
};

}  // namespace jztree
