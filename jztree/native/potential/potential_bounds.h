// The potential of a particle in its group: the sum of m / sqrt(r^2 + softening^2) over the other particles, taken as
// positive here. The particle with the largest potential is found exactly, in steps.
//
// In groups of more than `alone` particles, a tree first bounds all potentials. The particles of a group are contiguous
// in z-order. Nodes are runs of 8, 64, 512, ... rows, counted over all particles, and a group uses the nodes that are
// wholly inside it. A node that is far enough away counts with its mass, its centre and its second moments (J. E.
// Barnes & P. Hut, 1986, Nature 324, 446; L. Hernquist, 1987, ApJS 64, 715). The error is at most B / (rho^3 (rho -
// b)). Here B is the sum of m |y|^3 about the centre, b the largest |y|, and rho^2 the sum of the squared distance and
// the squared softening (J. K. Salmon & M. S. Warren, 1994, J. Comp. Phys. 111, 136: a softening acts like one more
// dimension with the same separation for all particles). A node is accepted if this error is at most a given fraction
// of the contribution of its mass alone. The sum of these fractions bounds the error of a potential. A fraction of 0.3
// suffices to exclude particles far from the centre. The remaining particles are bounded again with 0.1, and then with
// 0.03. (In a group of 200,000 particles with a core, the first step uses 2,400 nodes and 3,000 particles per particle.
// A start with 0.01 would use five times as many.)
//
// Then each potential that may be the largest is summed over all particles, always in the same order: 32 sums, each
// over every 32nd particle, are added pairwise in five steps. So neither the result nor its bits depend on the tree.
// Pairs at distance 0 count only if there is a softening.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/portable.h"
#include "groups/moments.h"

namespace jztree {

constexpr int block_rows = 32;              // number of particles bounded together, and of separate sums
constexpr int node_rows = 8, node_fan = 8;  // rows per node of the lowest level; nodes of a level per node of the next
constexpr int most_levels = 10;
// Smaller groups are summed directly: 512 particles take about as long as the nodes and rows that a tree needs per
// particle.
constexpr int64_t alone = 512;
constexpr int steps = 3;
JZTREE_BOTH constexpr double tolerance_of(int step) { return step == 0 ? 0.3 : step == 1 ? 0.1 : 0.03; }

// The levels of nodes over all rows; only nodes inside groups are used.
struct NodeLevels {
  int count = 0;
  int64_t size[most_levels] = {}, starts[most_levels + 1] = {};  // rows per node; first node of each level, and the end

  explicit NodeLevels(int64_t rows) {
    for (int64_t length = node_rows; length <= rows && count < most_levels; length *= node_fan, ++count) {
      size[count] = length;
      starts[count + 1] = starts[count] + rows / length;
    }
  }
  int64_t nodes() const { return starts[count]; }
};

// Places are relative to the first particle of the group.
template <int D>
struct PotentialNode {
  double mass, centre[D], spread[Pairs<D>::with_self];  // spread: weighted products of the coordinates about the centre
  double third, reach;                                  // B and b

  // Add a particle's terms about the centre.
  JZTREE_BOTH void add(const double* place, double weight) {
    double away[D], distance2 = 0;
    for (int d = 0; d < D; ++d) away[d] = place[d] - centre[d];
    for (int d = 0; d < D; ++d) distance2 += away[d] * away[d];
    double distance = std::sqrt(distance2);
    Pairs<D>::visit_with_self([&](int pair, int i, int j) { spread[pair] += weight * away[i] * away[j]; });
    third += weight * distance2 * distance;
    reach = distance > reach ? distance : reach;
  }

  // Whether the node may replace its particles for every point in a box.
  JZTREE_BOTH bool far_enough(const double* lower, const double* upper, double softening2, double tolerance) const {
    double rho2 = softening2;
    for (int d = 0; d < D; ++d) {
      double gap = lower[d] > centre[d] ? lower[d] - centre[d] : centre[d] > upper[d] ? centre[d] - upper[d] : 0;
      rho2 += gap * gap;
    }
    double rho = std::sqrt(rho2);
    return rho > reach && third <= tolerance * mass * rho2 * (rho - reach) && std::isfinite(rho2);
  }

  // Add the node's potential at a place, and the potential of its mass alone.
  JZTREE_BOTH void add_to(const double* place, double softening2, double* potential, double* of_masses) const {
    double away[D], rho2 = softening2;
    for (int d = 0; d < D; ++d) away[d] = place[d] - centre[d];
    for (int d = 0; d < D; ++d) rho2 += away[d] * away[d];
    double inverse = 1 / std::sqrt(rho2), inverse2 = inverse * inverse, along = 0, trace = 0;
    Pairs<D>::visit_with_self([&](int pair, int i, int j) {
      along += (i == j ? 1 : 2) * spread[pair] * away[i] * away[j];
      trace += i == j ? spread[pair] : 0;
    });
    *potential += mass * inverse + (3 * along * inverse2 - trace) * inverse2 * inverse / 2;
    *of_masses += mass * inverse;
  }
};

template <int D>
JZTREE_BOTH inline double pair_potential(const double* a, const double* b, double mass, double softening2) {
  double rho2 = softening2;
  for (int d = 0; d < D; ++d) rho2 += (a[d] - b[d]) * (a[d] - b[d]);
  return rho2 > 0 ? mass / std::sqrt(rho2) : 0;
}

// Visit the contents of a group for its particles in the rows [first, last), which are in a box. In the order of rows,
// this visits nodes that are far enough from the box, and runs of rows in no such node. With a softening, a node may be
// far enough from its own particles, but they have no potential at themselves. So nodes with these rows are opened.
template <int D, typename VisitNode, typename VisitRows>
JZTREE_BOTH void visit_group(const NodeLevels& levels, const PotentialNode<D>* nodes, int64_t begin, int64_t end,
                             int64_t first, int64_t last, const double* lower, const double* upper, double softening2,
                             double tolerance, const VisitNode& visit_node, const VisitRows& visit_rows) {
  for (int64_t row = begin; row < end;) {
    // Start with the largest node that begins here and descend: the nodes above it have been opened.
    int level = levels.count - 1;
    while (level >= 0 && (row % levels.size[level] != 0 || row + levels.size[level] > end)) --level;
    const PotentialNode<D>* node = nullptr;
    for (; level >= 0; --level) {
      node = nodes + levels.starts[level] + row / levels.size[level];
      if (row < last && row + levels.size[level] > first) continue;
      if (node->far_enough(lower, upper, softening2, tolerance)) break;
    }
    int64_t next = (row / node_rows + 1) * node_rows;
    if (level >= 0) {
      next = row + levels.size[level];
      visit_node(*node);
    } else {
      next = next < end ? next : end;
      visit_rows(row, next);
    }
    row = next;
  }
}

}  // namespace jztree
