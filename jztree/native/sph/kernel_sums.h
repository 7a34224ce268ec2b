// Sums over neighbours, weighted by a kernel W(r, h) of their distance, or by its derivatives.
//
// For query i and column c, sum[i, c, out] = sum over j of value[j, c, in] t[in, out](x, h), where x is the vector from
// the nearest image of source j to the query. t holds derivatives of W: one by a component of x for each of the
// `inward` indices in `in` and the `outward` indices in `out`, and the `by_h`-th derivative by h. In total there are at
// most two derivatives. With `images`, each component of the last outward index is also multiplied by the shift of the
// source's image in periods, -dx/d(box length).
//
// Terms may be out of range even if their later products with other numbers are in range. So the kernel can multiply
// values and sums by 2^(e powers), where 2^e is about the row's own smoothing length, even if W does not use that
// length.
//
// The smoothing length is that of the query (gather), of the source (scatter), or the mean of both.
#pragma once

#include "common/tree_arguments.h"
#include "kernel_profile.h"

namespace jztree {

enum class KernelForm : int { gather, scatter, mean };

template <int D, typename T>
struct KernelSums {
  int dims;  // of the input positions, which may have been padded to D
  Tree<D, T> sources;
  Buffer value;      // (n, columns dims^inward), of z-ordered sources, float32 or float64
  Lengths source_h;  // of each z-ordered source, or a single one for all
  Tree<D, T> queries;
  Lengths query_h;  // of each z-ordered query, or a single one for all
  Lengths profile;  // KernelProfile
  Lengths box;
  Buffer sum;  // (q, columns dims^outward), in the dtype of the values; 0 for queries from num on
  int64_t form, shape, inward, outward, by_h, value_powers, sum_powers;
  bool images;
  bool self;  // the sources are the queries, row by row

  explicit KernelSums(Arguments& in)
      : dims(static_cast<int>(in.given_width(D))),
        sources(in),
        value(in.any_argument("value")),
        source_h(in.lengths("source_h", any)),
        queries(in, "query_"),
        query_h(in.lengths("query_h", any)),
        profile(in.lengths("profile", profile_numbers)),
        box(in.lengths("box", D)),
        sum(in.any_result("sum")),
        form(in.attributes().integer("form")),
        shape(in.attributes().integer("shape")),
        inward(in.attributes().integer("inward")),
        outward(in.attributes().integer("outward")),
        by_h(in.attributes().integer("by_h")),
        value_powers(in.attributes().integer("value_powers")),
        sum_powers(in.attributes().integer("sum_powers")),
        images(in.attributes().flag("images")),
        self(in.attributes().flag("self")) {
    bool real = value.type == XLA_FFI_DataType_F32 || value.type == XLA_FFI_DataType_F64;
    in.expect(real && value.rank == 2 && value.dims[0] == sources.pos.rows() && value.dims[1] % inner() == 0, value,
              "value", "real numbers, one row per source, with all components of each column");
    in.expect(sum.type == value.type && sum.rank == 2 && sum.dims[0] == q() && sum.dims[1] == columns() * outer(), sum,
              "sum", "one row per query, with all components of each column");
    if (source_h.count != 1 && source_h.count != sources.pos.rows())
      throw Refusal("the smoothing lengths of sources must be one number, or one per source.");
    if (query_h.count != 1 && query_h.count != q())
      throw Refusal("the smoothing lengths of queries must be one number, or one per query.");
    if (order() + by_h > 2 || inward < 0 || outward < 0 || by_h < 0 || (images && outward == 0))
      throw Refusal("a kernel can be differentiated at most twice.");
  }

  int64_t q() const { return queries.pos.rows(); }
  int64_t order() const { return inward + outward; }
  int64_t inner() const { return power_of_dims(inward); }
  int64_t outer() const { return power_of_dims(outward); }
  int64_t columns() const { return value.dims[1] / inner(); }
  // The number of powers of 1 / h in the terms of a sum.
  int powers() const { return dims + static_cast<int>(order() + by_h); }
  int64_t power_of_dims(int64_t order) const { return order == 0 ? 1 : order == 1 ? dims : dims * dims; }
};

}  // namespace jztree
