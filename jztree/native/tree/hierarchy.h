// The plane hierarchy over z-ordered particles, by the window rule.
//
// The rows are cut in windows of leaf_size. Each window contributes one leaf boundary, at the row whose Morton key
// differs from its predecessor's in the highest bit. So a leaf has 1 to 2 leaf_size - 1 particles, and its borders tend
// to be those of large cells. The number of leaves does not depend on the data, and the windows do not depend on each
// other. Higher planes apply the same rule to the boundaries below, in windows of fan_out.
#pragma once

#include "common/key_arguments.h"
#include "common/tree_layout.h"

namespace jztree {

template <int D, typename T>
struct HierarchyOver : KeyedPositions<D, T> {  // z-ordered
  TreeLayout layout;
  int32_t *splits, *particle_splits;
  T *lower, *upper;    // (nodes, D)
  int32_t* unordered;  // not 0 if the rows are not in z-order. No error is raised here: all ranks must fail together.
  int64_t leaf_size, fan_out;

  explicit HierarchyOver(Arguments& in)
      : KeyedPositions<D, T>(in),
        layout(in.attributes().integers("plane_sizes")),
        splits(in.result<int32_t>("splits", {layout.splits()})),
        particle_splits(in.result<int32_t>("particle_splits", {layout.splits()})),
        lower(in.result<T>("lower", {layout.nodes(), D})),
        upper(in.result<T>("upper", {layout.nodes(), D})),
        unordered(in.result<int32_t>("unordered", {})),
        leaf_size(in.attributes().integer("leaf_size")),
        fan_out(in.attributes().integer("fan_out")) {}
};

}  // namespace jztree
