// The order of the particles by Morton key: stable, with non-finite rows after all others, and rows from `num` on last.
#pragma once

#include "common/key_arguments.h"

namespace jztree {

template <int D, typename T>
struct ZOrder : KeyedPositions<D, T> {
  const int32_t* in_order;  // not 0: the rows are already in order, so a CPU need not check the order
  int32_t* order;           // (n,)
  T* sorted;                // (n, D)

  explicit ZOrder(Arguments& in)
      : KeyedPositions<D, T>(in),
        in_order(in.number("in_order")),
        order(in.result<int32_t>("order", {this->pos.rows()})),
        sorted(in.result<T>("sorted", {this->pos.rows(), D})) {}
};

}  // namespace jztree
