// The arguments of kernels that define the grid of the Morton keys.
#pragma once

#include "arguments.h"
#include "morton.h"

namespace jztree {

template <int D, typename T>
struct KeyDomain {
  int dims;                // of the rows before padding
  const T *lower, *upper;  // (D,), bounds of the particles; used in open dimensions
  Lengths box;

  explicit KeyDomain(Arguments& in)
      : dims(static_cast<int>(in.given_width(D))),
        lower(in.argument<T>("lower", {D})),
        upper(in.argument<T>("upper", {D})),
        box(in.lengths("box", D)) {}

  JZTREE_BOTH KeyShape<D> shape() const { return KeyShape<D>(dims); }

  // To be called on the device that runs the kernel.
  JZTREE_BOTH KeyGrid<D> grid() const {
    double period[D];
    box.read(period);
    return KeyGrid<D>(shape(), lower, upper, period);
  }
};

// Positions of particles, and the grid of their keys.
template <int D, typename T>
struct KeyedPositions : Positions<D, T> {
  KeyDomain<D, T> keys;

  explicit KeyedPositions(Arguments& in, int64_t width = D) : Positions<D, T>(in, "", width), keys(in) {}
};

}  // namespace jztree
