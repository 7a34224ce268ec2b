// Spherical overdensities (spheres.h).
#pragma once

#include "common/tree_arguments.h"
#include "spheres.h"

namespace jztree {

template <int D, typename T>
struct Overdensity {
  static constexpr unsigned compiled_dims = dims_up_to(overdensity_dims);

  Tree<D, T> tree;
  Array<const T> mass;    // (n,); one element if it is shared, no elements if every particle counts 1
  Array<const T> centre;  // (q, D)
  const T* nearest;  // (q,), distance of the `min_count`-th nearest particle; negative: skip the centre, its row is
                     // zero
  Lengths density;   // m densities
  Lengths box;
  SphereRows<T> rows;
  int64_t min_count;

  explicit Overdensity(Arguments& in)
      : tree(in),
        mass(in.argument<T>("mass", {any})),
        centre(in.argument<T>("centre", {any, D})),
        nearest(in.argument<T>("nearest", {q()})),
        density(in.lengths("density", any)),
        box(in.lengths("box", D)),
        rows{in.result<T>("radius", {q(), m()}), in.result<T>("mass", {q(), m()}),
             in.result<int32_t>("count", {q(), m()}), in.result<T>("peak", {q(), 2}), in.result<T>("reach", {q()})},
        min_count(in.attributes().integer("min_count")) {
    in.expect(mass.rows() <= 1 || mass.rows() == tree.pos.rows(), mass, 1, "mass",
              "of the length of pos, or of at most one element");
  }

  int64_t q() const { return centre.rows(); }
  int64_t m() const { return density.count; }
  Masses<T> masses() const { return {mass.rows() > 0 ? mass.data : nullptr, mass.rows() == 1}; }
};

}  // namespace jztree
