// Moving whole rows of any dtype: out[i] = in[index[i]] (gather) and out[index[i]] = in[i] (scatter).
#pragma once

#include <string>

#include "common/arguments.h"

namespace jztree {

template <bool Scatter>
struct MoveRows {
  const Buffer& in;
  Array<const int32_t> index;
  const Buffer& out;
  // Number of moved rows, number of rows in the indexed array, and bytes per row.
  int64_t rows, limit, row_bytes;

  explicit MoveRows(Arguments& arguments)
      : in(arguments.any_argument("array")),
        index(arguments.argument<int32_t>("index", {any})),
        out(arguments.any_result("moved")),
        rows(index.rows()),
        limit(0),
        row_bytes(0) {
    arguments.expect(in.rank > 0, in, "array", "an array with rows");
    arguments.expect(out.rank == in.rank && out.type == in.type, out, "moved", "of the dtype and rank of array");
    const Buffer& listed = Scatter ? in : out;
    arguments.expect(listed.rows() == rows, listed, Scatter ? "array" : "moved",
                     "of the length of index, " + std::to_string(rows));
    limit = (Scatter ? out : in).rows();
    if (in.rows() == 0) return;
    row_bytes = in.bytes() / in.rows();
    arguments.expect(out.bytes() == row_bytes * out.rows(), out, "moved",
                     "of rows with the same size as those of array");
  }

  bool nothing_to_move() const { return rows == 0 || row_bytes == 0; }
};

using GatherRows = MoveRows<false>;
using ScatterRows = MoveRows<true>;

}  // namespace jztree
