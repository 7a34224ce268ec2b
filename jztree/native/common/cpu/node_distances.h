// Distances between a box and the nodes of a staged hierarchy, in vector loops.
#pragma once

#include <cstdint>

#include "common/geometry.h"
#include "lanes.h"
#include "staged_tree.h"

namespace jztree {

// Bounds of the squared distance between points of a box and of each node in a block of lanes, which starts at `first`
// in the flat arrays. bound(d, low, high): the bound of the distance in one dimension, from the nodes' coordinates.
template <int D, typename T, typename Bound>
inline Lanes<T> node_bounds_of_lanes(const NodeBoxes<D, T>& nodes, int64_t first, T rounding, const Bound& bound) {
  using V = Lanes<T>;
  V sum{};
  for (int d = 0; d < D; ++d) {
    V low, high;
    load(nodes.low[d] + first, low);
    load(nodes.high[d] + first, high);
    V along = bound(d, low, high);
    sum = sum + along * along;
  }
  return sum * rounding;
}

// The same for `count` nodes. `out` has space for whole blocks of lanes.
template <int D, typename T, typename Bound>
inline void node_bounds(const NodeBoxes<D, T>& nodes, int64_t first, int64_t count, T rounding, const Bound& bound,
                        T* out) {
  for (int64_t block = 0; block < count; block += lanes)
    store<T>(node_bounds_of_lanes(nodes, first + block, rounding, bound), out + block);
}

// A function that returns lower bounds of the distance to a box.
template <int D, typename T>
auto gap_to(const T* low, const T* high, const T* gap_period) {
  using V = Lanes<T>;
  return [=](int d, const V& node_low, const V& node_high) {
    return interval_gap<V>(V(low[d]), V(high[d]), node_low, node_high, V(gap_period[d]));
  };
}

// Lower bounds of the squared distance between a box and nodes. Flattened, because vectors that a function takes and
// returns pass through memory, which costs a tenth of the time for small k.
template <int D, typename T>
__attribute__((flatten)) inline void node_distances(const NodeBoxes<D, T>& nodes, const T* low, const T* high,
                                                    const T* gap_period, int64_t first, int64_t count, T* out) {
  node_bounds(nodes, first, count, below_one<T>, gap_to<D>(low, high, gap_period), out);
}

// The nodes, among at most a block of lanes, that may be within a distance of a box, one bit per node. distance2(): its
// square for each lane.
template <int D, typename T, typename Distance2>
__attribute__((flatten)) inline uint32_t near_nodes(const NodeBoxes<D, T>& nodes, const T* low, const T* high,
                                                    const T* gap_period, int64_t first, int64_t count,
                                                    const Distance2& distance2) {
  const auto gap2 = node_bounds_of_lanes(nodes, first, below_one<T>, gap_to<D>(low, high, gap_period));
  return lanes_at_most(gap2, distance2()) & ((1u << count) - 1);
}

// Upper bounds of the squared distance between a point of a box and one of each node.
template <int D, typename T>
__attribute__((flatten)) inline void node_reaches(const NodeBoxes<D, T>& nodes, const T* low, const T* high,
                                                  const T* period, int64_t first, int64_t count, T* out) {
  using V = Lanes<T>;
  auto reach = [&](int d, const V& node_low, const V& node_high) {
    V straight = larger<V>(node_high - V(low[d]), V(high[d]) - node_low);
    return smaller<V>(straight, V(period[d] / 2));
  };
  node_bounds(nodes, first, count, above_one<T>, reach, out);
}

}  // namespace jztree
