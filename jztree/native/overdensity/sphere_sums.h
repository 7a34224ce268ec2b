// Sums over the particles in spheres of given radii, like those over groups (groups/moments.h): over particles at most
// the radius away from the centre, by their nearest images.
#pragma once

#include "common/tree_arguments.h"
#include "groups/moments.h"
#include "spheres.h"

namespace jztree {

template <int D, typename T>
struct SphereSums {
  static constexpr unsigned compiled_dims = dims_up_to(overdensity_dims);

  Tree<D, T> tree;
  Array<const T> mass;    // (n,); one element if it is shared, no elements if every particle counts 1
  Array<const T> vel;     // (n, D), or no rows
  Array<const T> centre;  // (q, D)
  const T* radius;        // (q,); if it is not positive, the row of results is zero
  Lengths box;
  int64_t speeds;
  int32_t* count;  // (q,)
  CatalogueColumns<D, T> columns;

  explicit SphereSums(Arguments& in)
      : tree(in),
        mass(in.argument<T>("mass", {any})),
        vel(in.argument<T>("vel", {any, D})),
        centre(in.argument<T>("centre", {any, D})),
        radius(in.argument<T>("radius", {q()})),
        box(in.lengths("box", D)),
        speeds(moving() ? q() : 0),
        count(in.result<int32_t>("count", {q()})),
        columns{in.result<T>("mass", {q()}),          in.result<T>("centre", {q(), D}),
                in.result<T>("size", {q()}),          in.result<T>("radius", {q()}),
                in.result<T>("shape", {q(), D, D}),   in.result<T>("velocity", {speeds, D}),
                in.result<T>("dispersion", {speeds}), in.result<T>("rotation", {speeds, Pairs<D>::distinct})} {
    in.expect(mass.rows() <= 1 || mass.rows() == tree.pos.rows(), mass, 1, "mass",
              "of the length of pos, or of at most one element");
    in.expect(vel.rows() == 0 || vel.rows() == tree.pos.rows(), vel, 2, "vel", "of the length of pos, or without rows");
  }

  int64_t q() const { return centre.rows(); }
  bool moving() const { return vel.rows() > 0; }
  // Without the period, which is known on the device that runs the kernel.
  GroupParticles<D, T> particles() const {
    return {tree.pos, mass.rows() > 0 ? mass.data : nullptr, moving() ? vel.data : nullptr, mass.rows() == 1, {}};
  }
};

// The row of a sphere without particles.
template <int D, typename T>
JZTREE_BOTH void clear_sphere(int64_t row, bool moving, int32_t* count, const CatalogueColumns<D, T>& columns) {
  count[row] = 0;
  columns.mass[row] = columns.size[row] = columns.radius[row] = 0;
  for (int d = 0; d < D; ++d) columns.centre[row * D + d] = 0;
  for (int i = 0; i < D * D; ++i) columns.shape[row * D * D + i] = 0;
  if (!moving) return;
  columns.dispersion[row] = 0;
  for (int d = 0; d < D; ++d) columns.velocity[row * D + d] = 0;
  for (int pair = 0; pair < Pairs<D>::distinct; ++pair) columns.rotation[row * Pairs<D>::distinct + pair] = 0;
}

}  // namespace jztree
