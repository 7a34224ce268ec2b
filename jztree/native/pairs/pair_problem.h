// The data shared by all threads that count pairs.
#pragma once

#include <cstdint>

#include "pair_edges.h"
#include "pair_sides.h"

namespace jztree {

template <int D, typename T>
struct PairProblem {
  const PairSide<D, T>&one, &other;
  const Scale<D, T>& scale;  // with reordered dimensions
  const PairRule<D, T>& rule;
  const EdgeTable<T, OctaveCells>& first;
  const EdgeTable<T, EqualCells>& second;
  int64_t max_leaf;  // largest number of particles in a leaf
  bool separations;  // the weight of each pair is multiplied by its first quantity
};

}  // namespace jztree
