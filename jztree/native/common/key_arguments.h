// Where the grid of the Morton keys lies, as kernels are called with it.
#pragma once

#include "arguments.h"
#include "morton.h"

namespace jztree {

template <int D, typename T>
struct KeyDomain {
  const T *lower, *upper;  // (D,), of all particles; they count where the box is open
  Lengths box;

  explicit KeyDomain(Arguments& in)
      : lower(in.argument<T>("lower", {D})), upper(in.argument<T>("upper", {D})), box(in.lengths("box", D)) {}

  // Where the kernel runs.
  JZTREE_BOTH KeyGrid<D> grid() const {
    double period[D];
    box.read(period);
    return KeyGrid<D>(lower, upper, period);
  }
};

}  // namespace jztree
