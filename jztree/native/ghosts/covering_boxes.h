// A few boxes that closely cover the particles of a rank; each rank publishes them.
//
// The rows of a rank are a range of the z-order. It may begin or end with a few rows far away, after a jump of the
// curve. So ranges are split at the highest bit in which their keys differ, until their maximum number is reached. The
// ranges with the longest boxes and the most rows are split first.
#pragma once

#include "boxes.h"
#include "common/key_arguments.h"

namespace jztree {

template <int D, typename T>
struct CoveringBoxes : KeyedPositions<D, T> {  // z-ordered
  BoxedRuns<D, T> leaves;
  Array<int32_t> splits;  // (most + 1,)
  T *lower, *upper;       // (most, D)

  explicit CoveringBoxes(Arguments& in)
      : KeyedPositions<D, T>(in),
        leaves(in, "leaf_"),
        splits(in.result<int32_t>("splits", {any})),
        lower(in.result<T>("lower", {capacity(), D})),
        upper(in.result<T>("upper", {capacity(), D})) {
    in.expect(capacity() > 0, splits, 1, "splits", "of at least two entries");
  }

  int64_t capacity() const { return splits.rows() - 1; }
};

}  // namespace jztree
