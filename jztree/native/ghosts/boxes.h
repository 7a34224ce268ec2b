// Boxes of rows of one rank, and boxes that all ranks have published, as kernels are called with them.
#pragma once

#include <algorithm>
#include <limits>
#include <string>

#include "common/arguments.h"

namespace jztree {

// Boxes [count] in wrapped coordinates; empty ones have low > high.
template <int D, typename T>
struct Boxes {
  const T *lower, *upper;
  int64_t count;

  JZTREE_BOTH bool empty(int64_t i) const { return !(lower[i * D] <= upper[i * D]); }
  JZTREE_BOTH const T* low(int64_t i) const { return lower + i * D; }
  JZTREE_BOTH const T* high(int64_t i) const { return upper + i * D; }
};

// Runs of rows that are near each other, and the box of each.
template <int D, typename T>
struct BoxedRuns {
  Array<const int32_t> splits;
  Boxes<D, T> boxes;

  // of: what the names of the arrays begin with.
  BoxedRuns(Arguments& in, const std::string& of) : splits(in.argument<int32_t>(of + "splits", {any})) {
    int64_t runs = splits.rows() - 1;
    in.expect(runs >= 0, splits, 1, of + "splits", "of one entry more than there are runs");
    boxes.lower = in.argument<T>(of + "lower", {runs, D});
    boxes.upper = in.argument<T>(of + "upper", {runs, D});
    boxes.count = runs;
  }
};

// Boxes that the ranks have published, as many of each.
template <int D, typename T>
struct PublishedBoxes {
  int64_t ranks, per_rank;
  Boxes<D, T> boxes;

  PublishedBoxes(Arguments& in, const std::string& of) {
    Array<const T> lower = in.argument<T>(of + "lower", {any, any, D});
    ranks = lower.dims[0];
    per_rank = lower.dims[1];
    boxes.lower = lower;
    boxes.upper = in.argument<T>(of + "upper", {ranks, per_rank, D});
    boxes.count = ranks * per_rank;
    in.expect(ranks > 0, lower, 3, of + "lower", "of at least one rank");
  }
};

}  // namespace jztree
