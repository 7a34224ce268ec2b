// Compares two rows by their z-order, on CPUs and GPUs.
#pragma once

#include <cstdint>

#include "common/morton.h"

namespace jztree {

// Whether a row is before another. Not inlined, because it is long and rarely called.
template <int D, typename T>
JZTREE_APART bool is_before(const KeyGrid<D>& grid, const T* x, const T* second) {
  bool equal = true;
  for (int d = 0; d < D; ++d) equal &= x[d] == second[d];
  if (equal) return false;
  uint64_t words[OrderWords<D>::most];
  for (int word = 0; word < OrderWords<D>::count(grid); ++word) words[word] = OrderWords<D>::at(grid, second, word);
  return OrderWords<D>::before(grid, x, words);
}

}  // namespace jztree
