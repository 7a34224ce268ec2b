// Running sums of the values in each list (entry_lists.h), including the entry itself. Sums are accumulated in float64.
#pragma once

#include "common/arguments.h"

namespace jztree {

struct RunningSums {
  const Buffer& values;         // (entries,), float32 or float64
  Array<const int32_t> splits;  // (lists + 1,)
  const Buffer& sums;           // (entries,); 0 in entries of no list

  explicit RunningSums(Arguments& in)
      : values(in.any_argument("values")), splits(in.argument<int32_t>("splits", {any})), sums(in.any_result("sums")) {
    in.expect(splits.rows() > 0, splits, 1, "splits", "of at least one number");
    in.expect(values.rank == 1 && (values.type == XLA_FFI_DataType_F32 || values.type == XLA_FFI_DataType_F64), values,
              "values", "one column of floats");
    in.expect(sums.rank == 1 && sums.type == values.type && sums.rows() == values.rows(), sums, "sums",
              "of the dtype and length of values");
  }

  // Call work(zero) with a number of the dtype.
  template <typename Work>
  void with_type(const Work& work) const {
    values.type == XLA_FFI_DataType_F32 ? work(0.f) : work(0.);
  }
  int64_t entries() const { return values.rows(); }
  int64_t lists() const { return splits.rows() - 1; }
};

}  // namespace jztree
