// Whether a hierarchy belongs to particles: it covers exactly these, and every one lies in the box of its leaf, without
// which no search is right. A user may pass any hierarchy with any particles, so nothing here trusts a number in it.
#pragma once

#include "common/tree_arguments.h"

namespace jztree {

template <int D, typename T>
struct Belongs {
  static constexpr int most_dims = max_dims;

  Tree<D, T> tree;
  Lengths box;
  int32_t* belongs;  // not 0 if it does

  explicit Belongs(Arguments& in) : tree(in), box(in.lengths("box", D)), belongs(in.result<int32_t>("belongs", {})) {}
};

}  // namespace jztree
