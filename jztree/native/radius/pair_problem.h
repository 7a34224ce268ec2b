// What all threads that count pairs look at.
#pragma once

#include <cstdint>

#include "pair_edges.h"
#include "pair_sides.h"

namespace jztree {

template <int D, typename T>
struct PairProblem {
  const PairSide<D, T>&one, &other;
  const Scale<D, T>& scale;  // turned
  const PairRule<D, T>& rule;
  const EdgeTable<T, OctaveCells>& first;
  const EdgeTable<T, EqualCells>& second;
  int64_t most;  // particles in a leaf
};

}  // namespace jztree
