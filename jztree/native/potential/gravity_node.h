// The nodes of the tree of a group, and their moments. group_tree.h describes the tree.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "common/portable.h"
#include "groups/moments.h"

namespace jztree {

constexpr int64_t summed_directly = 512;  // the largest groups that are faster without a tree
constexpr int64_t leaf_window = 12, fan_window = 4;
// The extent of a group that determines its unit of length is at least this share of the softening, so that powers of
// the softening are within the range of float32.
constexpr double least_extent = 0x1p-20;

template <int D>
struct alignas(64) GravityNode {
  int32_t begin, end;       // rows
  int32_t child, children;  // the first node of the plane below; no children: a leaf
  double centre[D];         // weighted by absolute masses
  double reach;             // no particle is farther from the centre
  double spread;            // reach times the sum of |m| y^2, with y from the centre
  double size;              // the sum of |m|
};

// The moments about the centre.
template <int D>
struct NodeMoments {
  double mass, lever[D], inertia[Pairs<D>::with_self];
  double square;  // sum of |m| y^2
  double lower[D], upper[D];
};

// The particles of a tree in z-order, and its nodes, plane after plane.
template <int D>
struct GravityNodes {
  const double *place, *weight;
  GravityNode<D>* nodes;
  NodeMoments<D>* moments;

  // node: new, with its rows and children, which have their moments.
  JZTREE_BOTH void take_moments(GravityNode<D>& node, NodeMoments<D>& sums) const {
    sums = {};
    for (int d = 0; d < D; ++d) sums.lower[d] = std::numeric_limits<double>::infinity();
    for (int d = 0; d < D; ++d) sums.upper[d] = -std::numeric_limits<double>::infinity();
    each_part(node, [&](const double* part, double size, const NodeMoments<D>* inner, double mass) {
      sums.mass += mass;
      node.size += size;
      for (int d = 0; d < D; ++d) {
        node.centre[d] += size * part[d];
        sums.lower[d] = std::min(sums.lower[d], inner ? inner->lower[d] : part[d]);
        sums.upper[d] = std::max(sums.upper[d], inner ? inner->upper[d] : part[d]);
      }
    });
    double reach2 = 0;
    for (int d = 0; d < D; ++d) {
      const double middle = node.size > 0 ? node.centre[d] / node.size : sums.lower[d];
      node.centre[d] = std::min(std::max(middle, sums.lower[d]), sums.upper[d]);
      const double arm = std::max(sums.upper[d] - node.centre[d], node.centre[d] - sums.lower[d]);
      reach2 += arm * arm;
    }
    each_part(node, [&](const double* part, double size, const NodeMoments<D>* inner, double mass) {
      double away[D], distance2 = 0;
      for (int d = 0; d < D; ++d) {
        away[d] = part[d] - node.centre[d];
        distance2 += away[d] * away[d];
        sums.lever[d] += mass * away[d] + (inner ? inner->lever[d] : 0);
      }
      sums.square += size * distance2 + (inner ? inner->square : 0);
      Pairs<D>::visit_with_self([&](int pair, int i, int j) {
        sums.inertia[pair] += mass * away[i] * away[j];
        if (inner) sums.inertia[pair] += inner->inertia[pair] + inner->lever[i] * away[j] + inner->lever[j] * away[i];
      });
    });
    node.reach = std::sqrt(reach2);
    node.spread = node.reach * sums.square;
  }

 private:
  // Call visit(place, |m|, moments of a child or null, m) for the particles of a leaf or the children of a node.
  template <typename Visit>
  JZTREE_BOTH void each_part(const GravityNode<D>& node, const Visit& visit) const {
    for (int64_t row = node.begin; row < node.end && node.children == 0; ++row)
      visit(place + row * D, std::fabs(weight[row]), nullptr, weight[row]);
    for (int64_t i = node.child; i < node.child + node.children; ++i)
      visit(nodes[i].centre, nodes[i].size, moments + i, moments[i].mass);
  }
};

}  // namespace jztree
