// The bounding box of the particles, and whether all are within range.
#pragma once

#include "common/arguments.h"

namespace jztree {

template <int D, typename T>
struct BoundsOf : Positions<D, T> {
  T *lower, *upper;    // (D,), of the finite rows
  int32_t* first_bad;  // the first row out of range (common/scale.h), or -1
  int32_t* bad;        // the number of such rows

  explicit BoundsOf(Arguments& in)
      : Positions<D, T>(in),
        lower(in.result<T>("lower", {D})),
        upper(in.result<T>("upper", {D})),
        first_bad(in.result<int32_t>("first_bad", {})),
        bad(in.result<int32_t>("bad", {})) {}
};

}  // namespace jztree
