// For each of a rank's boxes that need ghosts, finds the other ranks that must receive the box: those that published a
// box of particles within its radius. With higher_only, finds only higher ranks. Counts are correct even if the boxes
// do not all fit into `order`.
//
// Distances are in float64 and radii are enlarged by the possible rounding errors, like in the selection of ghosts, so
// no needed box is left out.
#pragma once

#include "boxes.h"

namespace jztree {

template <int D, typename T>
struct SelectBoxes {
  Boxes<D, T> own;
  const T* radius;  // of each own box; negative: it needs no ghosts
  PublishedBoxes<D, T> known;
  const int32_t *known_counts, *rank;
  Lengths box;
  Array<int32_t> order;  // (capacity,), grouped by rank
  int32_t* counts;       // (ranks,)
  bool higher_only;

  explicit SelectBoxes(Arguments& in)
      : own(read_boxes(in)),
        radius(in.argument<T>("radius", {own.count})),
        known(in, "known_"),
        known_counts(in.argument<int32_t>("known_counts", {known.ranks, known.per_rank})),
        rank(in.number("rank")),
        box(in.lengths("box", D)),
        order(in.result<int32_t>("order", {any})),
        counts(in.result<int32_t>("counts", {known.ranks})),
        higher_only(in.attributes().flag("higher_only")) {}

 private:
  static Boxes<D, T> read_boxes(Arguments& in) {
    Array<const T> lower = in.argument<T>("lower", {any, D});
    return {lower, in.argument<T>("upper", {lower.rows(), D}), lower.rows()};
  }
};

}  // namespace jztree
