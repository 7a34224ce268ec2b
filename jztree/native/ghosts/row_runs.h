// Runs of rows that are near each other, with their boxes, for the CPU's kernels: those that were given, or if that is
// one of all rows without a box, runs of a few rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "boxes.h"
#include "common/cpu/parallel.h"
#include "common/cpu/row_box.h"

namespace jztree {

template <int D, typename T>
class RowRuns {
 public:
  // pos: of so many rows in z-order.
  RowRuns(const Parallel& parallel, const BoxedRuns<D, T>& given, const T* pos, int64_t rows, const double* period)
      : boxes_(given), splits_(given.splits) {
    if (given.count != 1 || !given.empty(0)) return;
    boxes_.count = (rows + few - 1) / few;
    made_splits_.resize(static_cast<size_t>(boxes_.count + 1));
    made_lower_.resize(static_cast<size_t>(boxes_.count * D));
    made_upper_.resize(static_cast<size_t>(boxes_.count * D));
    parallel.blocks(boxes_.count, 64, [&](int64_t begin, int64_t end) {
      for (int64_t run = begin; run < end; ++run) {
        T *low = made_lower_.data() + run * D, *high = made_upper_.data() + run * D;
        made_splits_[static_cast<size_t>(run)] = static_cast<int32_t>(run * few);
        no_box<D>(low, high);
        include_rows<D>(pos, run * few, std::min(rows, (run + 1) * few), period, low, high);
      }
    });
    made_splits_.back() = static_cast<int32_t>(rows);
    boxes_.lower = made_lower_.data();
    boxes_.upper = made_upper_.data();
    splits_ = made_splits_.data();
  }
  RowRuns(const RowRuns&) = delete;
  RowRuns& operator=(const RowRuns&) = delete;

  const Boxes<D, T>& boxes() const { return boxes_; }
  const int32_t* splits() const { return splits_; }

 private:
  static constexpr int64_t few = 32;

  Boxes<D, T> boxes_;
  const int32_t* splits_;
  std::vector<int32_t> made_splits_;
  std::vector<T> made_lower_, made_upper_;
};

}  // namespace jztree
