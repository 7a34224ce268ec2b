// Friends-of-friends groups: the connected components of particles at most one linking length apart. The linking length
// of two particles is the mean of both lengths.
//
// Sources: M. Davis et al. (1985), "The evolution of large-scale structure in a universe dominated by cold dark matter"
// (the groups); A. Prokopenko et al. (2023), "Fast tree-based algorithms for DBSCAN for low-dimensional data on GPUs"
// (dense cells).
#pragma once

#include "common/tree_arguments.h"
#include "link_rule.h"

namespace jztree {

template <int D, typename T>
struct Friends {
  RowTree<D, T> tree;  // with output rows
  Lengths rlink;       // (n,), one per z-ordered particle, or (1,), one for all
  Lengths box;
  int32_t* label;  // (n,), the smallest output row of the group
  bool filled;     // whether to write rows from num on: each is a separate group

  explicit Friends(Arguments& in)
      : tree(in, "", "rows"),
        rlink(in.lengths("rlink", any)),
        box(in.lengths("box", D)),
        label(in.result<int32_t>("label", {tree.pos.rows()})),
        filled(in.attributes().flag("filled")) {
    if (rlink.count != 1 && rlink.count != tree.pos.rows())
      throw Refusal("the linking lengths must be one number, or one per particle.");
  }
};

}  // namespace jztree
