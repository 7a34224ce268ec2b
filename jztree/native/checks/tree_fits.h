// Checks whether a hierarchy belongs to particles: it must cover exactly these, and every particle must be in the box
// of its leaf. Otherwise no search is correct. A user may pass any hierarchy with any particles, so nothing here trusts
// a number in it.
#pragma once

#include "common/tree_arguments.h"

namespace jztree {

template <int D, typename T>
struct TreeFits {
  static constexpr unsigned compiled_dims = padded_dims;

  Tree<D, T> tree;
  Lengths box;
  int32_t* fits;  // not 0 if it does

  explicit TreeFits(Arguments& in) : tree(in), box(in.lengths("box", D)), fits(in.result<int32_t>("fits", {})) {}
};

}  // namespace jztree
