// The rows that each rank gets: all rows for the rank itself, for other ranks those within the radius of their boxes.
// Only the boxes from ranks nearby are known. Counts are correct even if the rows do not all fit into `order`.
//
// Distances are in float64 and radii are enlarged by the possible rounding errors, so no needed row is left out.
#pragma once

#include "boxes.h"

namespace jztree {

template <int D, typename T>
struct SelectGhosts : Positions<D, T> {
  BoxedRuns<D, T> blocks;
  BoxesOfRanks<D, T> wanted;
  const T* radius;  // of each received box; negative: it needs no particles
  const int32_t* rank;
  Lengths box;
  Array<int32_t> order;  // (capacity,), grouped by rank; meaningless after the last row
  int32_t* counts;       // (ranks,)

  explicit SelectGhosts(Arguments& in)
      : Positions<D, T>(in),
        blocks(in, ""),
        wanted(in, "wanted_"),
        radius(in.argument<T>("radius", {wanted.count})),
        rank(in.number("rank")),
        box(in.lengths("box", D)),
        order(in.result<int32_t>("order", {any})),
        counts(in.result<int32_t>("counts", {wanted.ranks()})) {}
};

}  // namespace jztree
