// Whether enough sources are within a radius of every query.
#pragma once

#include <limits>

#include "common/tree_arguments.h"

namespace jztree {

template <int D, typename T>
struct EnoughWithin {
  static constexpr unsigned compiled_dims = padded_dims | 1u << 4;

  Tree<D, T> sources, queries;
  Lengths radius;  // a single one for all
  Lengths box;
  int32_t* enough;    // (q,), of z-ordered queries: 1 or 0; 0 for queries from num on
  int64_t min_count;  // the required number of sources
  bool self;          // the sources are the queries, row by row

  explicit EnoughWithin(Arguments& in)
      : sources(in),
        queries(in, "query_"),
        radius(in.lengths("radius", 1)),
        box(in.lengths("box", D)),
        enough(in.result<int32_t>("enough", {q()})),
        min_count(in.attributes().integer("min_count")),
        self(in.attributes().flag("self")) {
    if (min_count < 1 || min_count > std::numeric_limits<int32_t>::max())
      throw Refusal("the required number of sources is invalid; it must be from 1 to 2**31 - 1.");
  }

  int64_t q() const { return queries.pos.rows(); }
};

}  // namespace jztree
