// Whether the near particles of a particle enclose it, in two dimensions. Then it has no longer edge in the minimum
// spanning tree.
//
// An edge from p to x is not in the tree if a particle q is nearer to both than they are to each other: the tree is a
// part of the relative neighbourhood graph (G. T. Toussaint (1980), "The relative neighbourhood graph of a finite
// planar set"). Let r be the distance from p to its last near particle. If every point of the circle with radius r
// around p is nearer to a near particle than to p, then so is every point outside the circle. So p has no edge longer
// than r.
//
// The points of the circle that are nearer to a particle than to p form an arc. The arcs cover the circle if the end of
// each is inside another.
#pragma once

#include <cmath>
#include <limits>

#include "common/portable.h"

namespace jztree {

// An edge of an enclosed particle is not in the tree if its weight is at most this many times that of the last near
// particle. For heavier edges, rounding could decide which length is larger.
constexpr double enclosure_reach2 = 1e12;

constexpr float enclosure_margin = 1e-5f;  // exceeds the rounding errors

// The offset from p to a near particle, in units of r.
struct NearOffset {
  float x, y;

  JZTREE_BOTH float square() const { return x * x + y * y; }

  // Particles at the distance r are not nearer to p than x is, and those at p have no arc.
  JZTREE_BOTH bool has_arc() const {
    return square() <= 1 - enclosure_margin && square() >= std::numeric_limits<float>::min();
  }

  // The end of the arc, counterclockwise.
  JZTREE_BOTH NearOffset arc_end() const {
    const float along = std::sqrt(1 / square() - 0.25f);
    return {x / 2 - along * y, y / 2 + along * x};
  }

  // Whether a point of the circle is surely inside the arc.
  JZTREE_BOTH bool contains(const NearOffset& point) const {
    return point.x * x + point.y * y >= square() / 2 + enclosure_margin;
  }
};

// Whether the arcs cover the circle. near(i): the offset to near particle i of `count`.
template <typename Near>
JZTREE_BOTH inline bool arcs_enclose(int count, const Near& near) {
  int arcs = 0;
  for (int i = 0; i < count; ++i) {
    const NearOffset own = near(i);
    if (!own.has_arc()) continue;
    const NearOffset end = own.arc_end();
    bool inside = false;
    for (int j = 0; j < count && !inside; ++j) inside = near(j).has_arc() && near(j).contains(end);
    if (!inside) return false;
    ++arcs;
  }
  return arcs > 0;
}

}  // namespace jztree
