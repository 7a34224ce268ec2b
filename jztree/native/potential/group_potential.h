// Potential and acceleration of each particle due to the other particles of its group, where Newton's constant is 1.
#pragma once

#include "common/arguments.h"
#include "groups/catalogue.h"

namespace jztree {

// The part of the work that one of several devices with the same particles does.
struct Share {
  const int32_t* number;
  int64_t shares;

  explicit Share(Arguments& in) : number(in.number("share")), shares(in.attributes().integer("shares")) {}
  JZTREE_BOTH int64_t begin(int64_t items) const { return items * number[0] / shares; }
  JZTREE_BOTH int64_t end(int64_t items) const { return items * (number[0] + 1) / shares; }
};

template <int D, typename T>
struct GroupPotential {
  static constexpr unsigned compiled_dims = dims_up_to(catalogue_dims);

  GroupedParticles<D, T> grouped;  // masses of any sign; velocities are not used
  Lengths softening, error;        // a single one each
  bool spline;                     // the softening of Gadget instead of Plummer's
  bool images;                     // whether to sum over all images if the box is periodic; it then has 3 dimensions
  Share share;                     // of the rows of each group; other rows are 0
  Array<T> potential;              // (n,), 0 for rows in no group
  Array<T> acceleration;           // (n, D), or no rows if it is not wanted

  explicit GroupPotential(Arguments& in)
      : grouped(in),
        softening(in.lengths("softening", 1)),
        error(in.lengths("error", 1)),
        spline(in.attributes().flag("spline")),
        images(in.attributes().flag("images")),
        share(in),
        potential(in.result<T>("potential", {grouped.rows()})),
        acceleration(in.result_if<T>(in.attributes().flag("acceleration"), "acceleration", grouped.rows(), D)) {}
};

}  // namespace jztree
