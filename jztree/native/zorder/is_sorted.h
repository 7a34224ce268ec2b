// Checks whether rows are finite and already in z-order, so that a sort would not move them.
#pragma once

#include "common/key_arguments.h"

namespace jztree {

template <int D, typename T>
struct IsSorted {
  static constexpr unsigned compiled_dims = padded_dims;

  Array<const T> pos;  // (n, D)
  Count num;
  KeyDomain<D, T> keys;
  int32_t* sorted;  // not 0 if all rows are finite and in order

  explicit IsSorted(Arguments& in)
      : pos(in.argument<T>("pos", {any, D})),
        num(in.count("num", pos.rows())),
        keys(in),
        sorted(in.result<int32_t>("sorted", {})) {}
};

}  // namespace jztree
