// Runs of a few rows and the box of each, for particles without a hierarchy. They replace the leaves.
#pragma once

#include "boxes.h"

namespace jztree {

struct RunsOfRows {
  int64_t run_rows;  // except in the last non-empty run

  // The first row of a run; `rows` is the total number of rows.
  JZTREE_BOTH int64_t begin(int64_t run, int64_t rows) const { return run * run_rows < rows ? run * run_rows : rows; }
};

template <int D, typename T>
struct RowBoxes : Positions<D, T> {
  Lengths box;
  Array<int32_t> splits;  // (runs + 1,)
  T *lower, *upper;       // (runs, D), in wrapped coordinates; empty for runs without rows
  RunsOfRows rows_of;

  explicit RowBoxes(Arguments& in)
      : Positions<D, T>(in),
        box(in.lengths("box", D)),
        splits(in.result<int32_t>("splits", {any})),
        lower(in.result<T>("lower", {runs(), D})),
        upper(in.result<T>("upper", {runs(), D})),
        rows_of{in.attributes().integer("run_rows")} {
    in.expect(rows_of.run_rows > 0 && runs() * rows_of.run_rows >= this->pos.rows(), splits, 1, "splits",
              "of runs that hold every row");
  }

  int64_t runs() const { return splits.rows() - 1; }
};

}  // namespace jztree
