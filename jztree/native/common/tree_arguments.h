// A hierarchy as arguments of kernels: six arrays that always occur together, and the sizes of its planes.
#pragma once

#include <string>

#include "arguments.h"
#include "tree_layout.h"

namespace jztree {

// The kernel `tree_fits` checks whether the numbers in a hierarchy belong to the particles. All other kernels rely on
// this check.
template <int D, typename T>
struct Tree {
  Array<const T> pos;  // (n, D), z-ordered, unchanged input
  Count num;
  TreeLayout layout;
  const int32_t *splits, *particle_splits;
  const T *lower, *upper;  // (nodes, D), of wrapped positions

  // of: prefix of the names of the arrays, and of the attribute with the sizes.
  explicit Tree(Arguments& in, const std::string& of = "")
      : pos(in.argument<T>(of + "pos", {any, D})),
        num(in.count(of + "num", pos.rows())),
        layout(in.attributes().integers((of + "plane_sizes").c_str())),
        splits(in.argument<int32_t>(of + "splits", {layout.splits()})),
        particle_splits(in.argument<int32_t>(of + "particle_splits", {layout.splits()})),
        lower(in.argument<T>(of + "lower", {layout.nodes(), D})),
        upper(in.argument<T>(of + "upper", {layout.nodes(), D})) {}
};

}  // namespace jztree
