// Checks whether rows are finite and already in z-order, so that a sort would not move them.
#pragma once

#include "common/key_arguments.h"

namespace jztree {

template <int D, typename T>
struct IsSorted : KeyedPositions<D, T> {
  int32_t* sorted;  // not 0 if all rows are finite and in order

  explicit IsSorted(Arguments& in) : KeyedPositions<D, T>(in), sorted(in.result<int32_t>("sorted", {})) {}
};

}  // namespace jztree
