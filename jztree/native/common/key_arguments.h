// The arguments of kernels that define the grid of the Morton keys.
#pragma once

#include "arguments.h"
#include "morton.h"

namespace jztree {

template <int D, typename T>
struct KeyDomain {
  const T *lower, *upper;  // (D,), of all particles; used in open dimensions
  Lengths box;

  explicit KeyDomain(Arguments& in)
      : lower(in.argument<T>("lower", {D})), upper(in.argument<T>("upper", {D})), box(in.lengths("box", D)) {}

  // To be called on the device that runs the kernel.
  JZTREE_BOTH KeyGrid<D> grid() const {
    double period[D];
    box.read(period);
    return KeyGrid<D>(lower, upper, period);
  }
};

}  // namespace jztree
