// The rows that each rank is to have: to itself all, to another those within the radius of its boxes. Only the boxes
// that came from ranks nearby are known. Counts are right even if the rows do not all fit into the order.
//
// Distances are in float64 and radii are enlarged by what rounding may have taken off, so nothing that is needed is
// left out.
#pragma once

#include "boxes.h"

namespace jztree {

template <int D, typename T>
struct SelectGhosts {
  static constexpr unsigned compiled_dims = padded_dims;

  Array<const T> pos;  // (n, D)
  Count num;
  BoxedRuns<D, T> blocks;
  BoxesOfRanks<D, T> wanted;
  const T* radius;  // of each wanted box; negative: it wants nothing
  const int32_t* rank;
  Lengths box;
  Array<int32_t> order;  // (room,), grouped by rank; what is behind is of no meaning
  int32_t* counts;       // (ranks,)

  explicit SelectGhosts(Arguments& in)
      : pos(in.argument<T>("pos", {any, D})),
        num(in.count("num", pos.rows())),
        blocks(in, ""),
        wanted(in, "wanted_"),
        radius(in.argument<T>("radius", {wanted.count})),
        rank(in.number("rank")),
        box(in.lengths("box", D)),
        order(in.result<int32_t>("order", {any})),
        counts(in.result<int32_t>("counts", {wanted.ranks()})) {}
};

}  // namespace jztree
