// The groups that remain of a spanning tree without its edges longer than a linking length.
#pragma once

#include "common/arguments.h"
#include "tree_edges.h"

namespace jztree {

struct TreeCut {
  Array<const int32_t> ends;  // (m, 2), rows of the ends of edges, shortest edge first
  const uint32_t* exact;      // (m, 2), their lengths in float64: low and high word
  Count num;                  // of edges
  Lengths rlink;
  Array<int32_t> label;  // (n,), the smallest row of the group

  explicit TreeCut(Arguments& in)
      : ends(in.argument<int32_t>("ends", {any, 2})),
        exact(in.argument<uint32_t>("exact", {ends.rows(), 2})),
        num(in.count("num", ends.rows())),
        rlink(in.lengths("rlink", 1)),
        label(in.result<int32_t>("label", {any})) {}
};

}  // namespace jztree
