// The state of Boruvka's algorithm between and during its rounds, shared by all threads.
//
// A row's `floor` is a weight below which it has no edge to another set. Sets only grow, so a floor stays valid, and
// most rows need no search: the lightest edge of their set is below their floor.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "common/cpu/atomics.h"
#include "common/cpu/memory.h"
#include "common/cpu/parallel.h"
#include "common/cpu/staged_tree.h"
#include "edge_rule.h"
#include "spanning_tree.h"

namespace jztree {

constexpr int32_t many_sets = -1;
constexpr uint8_t used_up = 255;  // the near particles give no more information

template <int D, typename T>
struct EdgeSets {
  const SpanningTree<D, T>& in;
  const EdgeParticles<D, T>& particles;
  const StagedTree<D, T>& tree;
  const EdgeRule<D, T>& rule;
  const int64_t num;
  Scratch<int32_t> set;          // [row], the smallest row of its set
  std::vector<int32_t> nodes;    // [node], the set of its rows, or many_sets
  Scratch<int32_t> to;           // [row], the other end of its lightest known edge to another set; -1: none
  Scratch<uint8_t> is_lightest;  // [row], whether no other edge of the row to another set is lighter
  Scratch<uint8_t> seen;         // [row], the number of its first near particles that are in its set, or used_up
  Scratch<double> floor;         // [row]
  Scratch<double> core;          // [row], weight of the core distance; empty for Euclidean lengths
  std::vector<double> floors;    // [leaf], the least floor of its rows
  Scratch<std::atomic<uint64_t>> least_weight;  // [set], bits of the least weight of an edge to another set
  Scratch<std::atomic<uint64_t>> pair;          // [set], the least pair of rows of such an edge with this weight
  // [set], bits of a weight: edges to particles outside the tree weigh more. Empty if there are none.
  Scratch<std::atomic<uint64_t>> unknown;

  EdgeSets(const SpanningTree<D, T>& interface, const StagedTree<D, T>& staged, const EdgeRule<D, T>& edge_rule)
      : in(interface),
        particles(interface.particles),
        tree(staged),
        rule(edge_rule),
        num(interface.tree.num()),
        set(num),
        nodes(static_cast<size_t>(staged.layout().nodes()), many_sets),
        to(num),
        is_lightest(num),
        seen(num),
        floor(num),
        core(interface.particles.has_core() ? num : 0),
        floors(static_cast<size_t>(staged.leaves()), 0),
        least_weight(num),
        pair(num),
        unknown(interface.particles.known ? num : 0) {}

  const T* pos(int64_t row) const { return particles.place(row); }

  double weight(int64_t a, int64_t b) const { return weight_at(a, b, rule.weight(pos(a), pos(b))); }

  // The same from the weight of the distance.
  double weight_at(int64_t a, int64_t b, double distance) const {
    return particles.has_core() ? std::max({distance, core.get()[a], core.get()[b]}) : distance;
  }

  // The link of an edge. It has output rows if the results do not depend on z-ordered rows: output rows of sorted edges
  // are far apart in memory.
  Link link(int64_t from, int64_t to, bool certain) const {
    if (in.needs_places()) return Link(from, to, certain);
    return Link(particles.output_row(from), particles.output_row(to), certain);
  }

  uint64_t rows_of(int64_t a, int64_t b) const { return pair_of(particles.output_row(a), particles.output_row(b)); }

  // The least weight found so far in this round of an edge from a set to another.
  double least_of(int32_t of_set) { return weight_of_bits(least_weight[of_set].load(std::memory_order_relaxed)); }

  // Returns whether no lighter edge of the set is known.
  bool offer(int32_t of_set, double weight) { return lower(least_weight[of_set], bits_of_weight(weight)); }
  void offer_pair(int32_t of_set, uint64_t rows) { lower(pair[of_set], rows); }
  void limit_known(int32_t of_set, int64_t row) {
    lower(unknown[of_set], bits_of_weight(rule.beyond(particles.known[row])));
  }

  // Whether the lightest edge of a set, with this weight, is lighter than all edges to particles outside the tree.
  bool is_certain(int32_t of_set, double weight) {
    return !particles.known || bits_of_weight(weight) < unknown[of_set].load(std::memory_order_relaxed);
  }
};

}  // namespace jztree
