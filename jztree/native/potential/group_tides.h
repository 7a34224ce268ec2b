// The change of the acceleration of each particle if the particles of its group move; Newton's constant is 1.
//
// The acceleration by one particle changes by its mass times H times the difference of both moves, where H is the
// matrix of second derivatives of the potential between both, with the sign of an attraction. All sums are direct.
#pragma once

#include "group_potential.h"

namespace jztree {

template <int D, typename T>
struct GroupTides {
  static constexpr unsigned compiled_dims = dims_up_to(catalogue_dims);

  GroupedParticles<D, T> grouped;  // the moves are in the column of velocities
  Lengths softening;               // a single one
  bool spline;                     // the softening of Gadget instead of Plummer's
  bool transposed;                 // apply the transposed matrix: the sum of H (m move' - m' move)
  Share share;                     // of the rows of each group; other rows are 0
  Array<T> change;                 // (n, D), 0 for rows in no group

  explicit GroupTides(Arguments& in)
      : grouped(in),
        softening(in.lengths("softening", 1)),
        spline(in.attributes().flag("spline")),
        transposed(in.attributes().flag("transposed")),
        share(in),
        change(in.result<T>("change", {grouped.rows(), D})) {
    in.expect(grouped.moving(), grouped.vel, 2, "moves", "of the length of pos");
  }
};

}  // namespace jztree
