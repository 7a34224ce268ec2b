// The order of the particles by Morton key: stable, rows that are not finite after all others, and rows from `num` on
// last.
#pragma once

#include "common/key_arguments.h"

namespace jztree {

template <int D, typename T>
struct ZOrder {
  static constexpr int most_dims = max_dims;

  Array<const T> pos;  // (n, D)
  Count num;
  KeyDomain<D, T> keys;
  int32_t* order;  // (n,)
  T* sorted;       // (n, D)

  explicit ZOrder(Arguments& in)
      : pos(in.argument<T>("pos", {any, D})),
        num(in.count("num", pos.rows())),
        keys(in),
        order(in.result<int32_t>("order", {pos.rows()})),
        sorted(in.result<T>("sorted", {pos.rows(), D})) {}
};

}  // namespace jztree
