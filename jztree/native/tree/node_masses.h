// Mass and centre of mass of every node, summed in float64 over its particles in z-order. Centres are those of the
// wrapped positions, so they are inside the node's box.
#pragma once

#include "common/arguments.h"
#include "common/tree_layout.h"

namespace jztree {

template <int D, typename T>
struct NodeMasses {
  Array<const T> pos;   // (n, D), z-ordered
  Array<const T> mass;  // (n,); one element if all particles share it
  TreeLayout layout;
  const int32_t* splits;
  Lengths box;
  T* node_mass;    // (nodes,)
  T* node_centre;  // (nodes, D)
  bool shared;

  explicit NodeMasses(Arguments& in)
      : pos(in.argument<T>("pos", {any, D})),
        mass(in.argument<T>("mass", {any})),
        layout(in.attributes().integers("plane_sizes")),
        splits(in.argument<int32_t>("splits", {layout.splits()})),
        box(in.lengths("box", D)),
        node_mass(in.result<T>("node_mass", {layout.nodes()})),
        node_centre(in.result<T>("node_centre", {layout.nodes(), D})),
        shared(mass.rows() == 1) {
    in.expect(shared || mass.rows() == pos.rows(), mass, 1, "mass", "of the length of pos, or of one element");
  }
};

}  // namespace jztree
