// The order of the particles by Morton key: stable, with non-finite rows after all others, and rows from `num` on last.
#pragma once

#include "common/key_arguments.h"

namespace jztree {

template <int D, typename T>
struct ZOrder {
  static constexpr unsigned compiled_dims = padded_dims;

  Array<const T> pos;  // (n, D)
  Count num;
  KeyDomain<D, T> keys;
  const int32_t* in_order;  // not 0: the rows are already in order, so a CPU need not check the order
  int32_t* order;           // (n,)
  T* sorted;                // (n, D)

  explicit ZOrder(Arguments& in)
      : pos(in.argument<T>("pos", {any, D})),
        num(in.count("num", pos.rows())),
        keys(in),
        in_order(in.number("in_order")),
        order(in.result<int32_t>("order", {pos.rows()})),
        sorted(in.result<T>("sorted", {pos.rows(), D})) {}
};

}  // namespace jztree
