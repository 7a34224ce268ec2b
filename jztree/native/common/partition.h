// Binary search.
#pragma once

#include <cstdint>

#include "portable.h"

namespace jztree {

// The first place in [first, last) where `before` is false, or `last` if it is true everywhere. If `before` is true at
// a place, it must be true at all earlier places.
template <typename Before>
JZTREE_BOTH inline int64_t partition_point(int64_t first, int64_t last, const Before& before) {
  while (first < last) {
    const int64_t middle = (first + last) / 2;
    const bool is_before = before(middle);
    (is_before ? first : last) = is_before ? middle + 1 : middle;
  }
  return first;
}

}  // namespace jztree
