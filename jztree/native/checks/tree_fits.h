// Checks whether a hierarchy belongs to some particles: it must cover exactly these particles, and every particle must
// be in the box of its leaf. Otherwise the results of searches would be wrong. A user may pass any hierarchy with any
// particles, so this check must not trust any number in the hierarchy. The rows of an index must be rows of its
// particles.
#pragma once

#include "common/tree_arguments.h"

namespace jztree {

template <int D, typename T>
struct TreeFits {
  Tree<D, T> tree;
  Lengths box;
  Array<const int32_t> rows;  // (n), where results of each particle are written; or null
  int32_t* fits;              // not 0 if the hierarchy belongs to the particles

  explicit TreeFits(Arguments& in)
      : tree(in),
        box(in.lengths("box", D)),
        rows(in.optional<int32_t>("rows", {tree.pos.rows()})),
        fits(in.result<int32_t>("fits", {})) {}
};

}  // namespace jztree
