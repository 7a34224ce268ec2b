// A hierarchy as arguments of kernels: six arrays that always occur together, and the sizes of its planes.
#pragma once

#include <string>

#include "arguments.h"
#include "tree_layout.h"

namespace jztree {

// The kernel `tree_fits` checks whether the numbers in a hierarchy belong to the particles. All other kernels rely on
// this check.
template <int D, typename T>
struct Tree : Positions<D, T> {  // z-ordered, unchanged input
  TreeLayout layout;
  const int32_t *splits, *particle_splits;
  const T *lower, *upper;  // (nodes, D), of wrapped positions

  // of: prefix of the names of the arrays, and of the attribute with the sizes.
  explicit Tree(Arguments& in, const std::string& of = "")
      : Positions<D, T>(in, of),
        layout(in.attributes().integers((of + "plane_sizes").c_str())),
        splits(in.argument<int32_t>(of + "splits", {layout.splits()})),
        particle_splits(in.argument<int32_t>(of + "particle_splits", {layout.splits()})),
        lower(in.argument<T>(of + "lower", {layout.nodes(), D})),
        upper(in.argument<T>(of + "upper", {layout.nodes(), D})) {}
};

// A hierarchy whose particles have rows in other arrays.
template <int D, typename T>
struct RowTree : Tree<D, T> {
  const int32_t* rows;  // (n,), of each z-ordered particle; null: its index

  RowTree(Arguments& in, const std::string& of, const char* name_of_rows)
      : Tree<D, T>(in, of), rows(in.optional<int32_t>(name_of_rows, {this->pos.rows()})) {}

  int64_t row_of(int64_t particle) const { return rows ? rows[particle] : particle; }
};

}  // namespace jztree
