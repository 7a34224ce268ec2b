// Boxes of rows of one rank, and known boxes of other ranks, as arguments of kernels.
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
struct BoxedRuns : Boxes<D, T> {
  Array<const int32_t> splits;

  // of: prefix of the names of the arrays.
  BoxedRuns(Arguments& in, const std::string& of) : Boxes<D, T>{}, splits(in.argument<int32_t>(of + "splits", {any})) {
    this->count = splits.rows() - 1;
    in.expect(this->count >= 0, splits, 1, of + "splits", "of one more entry than runs");
    this->lower = in.argument<T>(of + "lower", {this->count, D});
    this->upper = in.argument<T>(of + "upper", {this->count, D});
  }
};

// Boxes received from other ranks, rank by rank.
template <int D, typename T>
struct BoxesOfRanks : Boxes<D, T> {
  Array<const int32_t> splits;

  BoxesOfRanks(Arguments& in, const std::string& of)
      : Boxes<D, T>{}, splits(in.argument<int32_t>(of + "splits", {any})) {
    in.expect(ranks() > 0, splits, 1, of + "splits", "of one more entry than ranks");
    Array<const T> low = in.argument<T>(of + "lower", {any, D});
    this->count = low.rows();
    this->lower = low;
    this->upper = in.argument<T>(of + "upper", {this->count, D});
  }

  int64_t ranks() const { return splits.rows() - 1; }
};

// Boxes that the ranks have published, the same number for each rank.
template <int D, typename T>
struct PublishedBoxes : Boxes<D, T> {
  int64_t ranks, per_rank;

  PublishedBoxes(Arguments& in, const std::string& of) : Boxes<D, T>{} {
    Array<const T> low = in.argument<T>(of + "lower", {any, any, D});
    ranks = low.dims[0];
    per_rank = low.dims[1];
    in.expect(ranks > 0, low, 3, of + "lower", "of at least one rank");
    this->lower = low;
    this->upper = in.argument<T>(of + "upper", {ranks, per_rank, D});
    this->count = ranks * per_rank;
  }
};

}  // namespace jztree
