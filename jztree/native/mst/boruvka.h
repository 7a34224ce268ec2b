// Boruvka's algorithm over a z-ordered tree. Each round joins every set of rows to another one by the first of its
// outgoing edges in the order of edges:
//
// 1. Every row offers its lightest edge among its near particles, if this is surely its lightest. The least weight of a
//    set is a minimum over its rows.
// 2. Rows with a floor up to the least weight of their set search the tree (edge_walk.h).
// 3. Among the edges with the least weight of a set, a second minimum finds the first pair of rows.
// 4. These edges join the sets.
//
// In the first round, each set has one row, which needs neither minimum.
//
// A leaf of one set is skipped if its rows have floors above the least weight. So late rounds look only at leaves near
// the boundaries of sets. In two dimensions, the near particles of most rows exclude all other edges (enclosure.h), so
// few rows search.
//
// Equal points are joined before the first round: each to the first of them. Only this row takes part in the rounds,
// because its edges precede those of the others. So the cost of sets of equal points is linear. With core distances
// above 0, equal points are not closer to each other than to others, so they all take part.
//
// If the particles are a part of a larger set, all equal points are among them. The first one in the output order is
// joined with all others, but a rank joins only its own first one with particles of other ranks: the edges from its
// other equal points are certain.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/cpu/spares.h"
#include "common/cpu/staged_tree.h"
#include "edge_sets.h"
#include "edge_sort.h"
#include "edge_walk.h"
#include "fof/union_find.h"
#include "near_arcs.h"
#include "shared_list.h"

namespace jztree {

template <int D, typename T>
class Boruvka {
 public:
  Boruvka(const Parallel& parallel, EdgeSets<D, T>& sets, const StagedTree<D, T>& tree, const EdgeList& edges)
      : parallel_(parallel),
        sets_(sets),
        tree_(tree),
        joined_(sets.num),
        certain_(sets.particles.known ? sets.num : 0),
        edges_(edges),
        candidates_(sets.num),
        searching_(tree.leaves()),
        leaf_capacity_(largest_leaf(tree)) {}

  // Writes the edges, in any order.
  void run() {
    if (sets_.num == 0) return;
    begin();
    if (sets_.particles.label) {
      count_sets();
    } else {
      join_equal_points();
      join_single_rows();
    }
    while (count_.load() < edge_count_) {
      label();
      offer();
      search();
      choose();
      join();
    }
  }

  // The number of edges.
  int64_t count() const { return count_.load(); }

  // The first of the rank's particles that certain edges join with a row.
  int32_t certain_set(int64_t row) { return certain_.find(row); }

 private:
  static constexpr int64_t grain = 64;  // leaves

  template <typename Work>
  void each_row(const Work& work) {
    parallel_.blocks(sets_.num, 1 << 13, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) work(row);
    });
  }

  // Call work(item, added) for the items of [0, items), and add the edges that it appends to `added`. Threads that
  // added each edge separately would wait for each other.
  template <typename Work>
  void each_adding(int64_t items, const Work& work) {
    parallel_.blocks(items, 1 << 12, [&](int64_t begin, int64_t end) {
      std::vector<Edge> added;
      for (int64_t item = begin; item < end; ++item) work(item, added);
      int64_t place = count_.fetch_add(static_cast<int64_t>(added.size()), std::memory_order_relaxed);
      for (const Edge& edge : added) edges_.set(place++, edge);
    });
  }

  void begin() {
    each_row([&](int64_t row) {
      joined_.set(row, sets_.particles.label ? sets_.particles.label[row] : row);
      if (sets_.particles.known) certain_.set(row, row);
      sets_.to[row] = -1;
      sets_.is_lightest[row] = 0;
      sets_.seen[row] = 0;
      sets_.floor[row] = 0;
      if (sets_.particles.has_core()) sets_.core[row] = sets_.rule.weight(sets_.pos(row), sets_.particles.core_of(row));
    });
    edge_count_ = sets_.num - 1;
  }

  void count_sets() {
    std::atomic<int64_t> sets{0};
    parallel_.blocks(sets_.num, 1 << 13, [&](int64_t begin, int64_t end) {
      const int32_t* label = sets_.particles.label;
      int64_t labels = 0;
      for (int64_t row = begin; row < end; ++row) labels += label[row] == row;
      sets.fetch_add(labels, std::memory_order_relaxed);
    });
    edge_count_ = sets.load() - 1;
  }

  void join_equal_points() {
    // Equal points are neighbours in z-order. Their first row in the output order represents them.
    each_adding(sets_.num, [&](int64_t row, std::vector<Edge>& added) {
      if ((row == 0 || !same_place(row - 1, row)) && row + 1 < sets_.num && same_place(row, row + 1))
        join_equal(row, added);
    });
  }

  bool same_place(int64_t a, int64_t b) const { return tree_.same_place(a, tree_, b) && sets_.weight(a, b) == 0; }

  void join_equal(int64_t first, std::vector<Edge>& added) {
    int64_t end = first + 1;
    while (end < sets_.num && same_place(end - 1, end)) ++end;
    const int64_t representative = first_output(first, end, [](int64_t) { return true; });
    const int64_t local_row = first_output(first, end, [&](int64_t row) { return !sets_.particles.is_ghost(row); });
    for (int64_t row = first; row < end; ++row) {
      if (row == representative) continue;
      const bool certain =
          !sets_.particles.is_ghost(row) && (row != local_row || !sets_.particles.is_ghost(representative));
      add(0, row, representative, certain, added);
      if (certain && sets_.particles.known) certain_.unite(row, local_row);
      drop(row);
    }
  }

  // The row of those with a property that is first in the output order, or -1.
  template <typename Counts>
  int64_t first_output(int64_t begin, int64_t end, const Counts& counts) const {
    int64_t first = -1;
    for (int64_t row = begin; row < end; ++row)
      if (counts(row) && (first < 0 || sets_.particles.output_row(row) < sets_.particles.output_row(first)))
        first = row;
    return first;
  }

  // Take a row out of the rounds: its edges are too heavy, and it is too far away for others.
  void drop(int64_t row) {
    sets_.floor[row] = no_weight;
    for (int d = 0; d < D; ++d) tree_.x[d][row] = std::numeric_limits<T>::infinity();
  }

  bool takes_part(int64_t row) const { return tree_.x[0][row] < std::numeric_limits<T>::infinity(); }

  void add(double weight, int64_t from, int64_t to, bool certain, std::vector<Edge>& added) {
    added.push_back({bits_of_weight(weight), sets_.link(from, to, certain)});
    joined_.unite(from, to);
  }

  // Add the lightest edge of a set. Another rank may have found the same edge if one end is a ghost.
  void add_lightest(double weight, int64_t from, int64_t to, bool certain, std::vector<Edge>& added) {
    certain &= !sets_.particles.is_ghost(from) && !sets_.particles.is_ghost(to);
    add(weight, from, to, certain, added);
    if (certain && sets_.particles.known) certain_.unite(from, to);
  }

  // Find the sets of rows and nodes, and forget the edges of the last round.
  void label() {
    parallel_.blocks(tree_.leaves(), 1 << 9, [&](int64_t begin, int64_t end) {
      for (int64_t leaf = begin; leaf < end; ++leaf) label_leaf(leaf);
    });
    if (sets_.particles.known) {
      each_row([&](int64_t row) {
        if (takes_part(row)) sets_.limit_known(sets_.set[row], row);
      });
    }
    for (int plane = 1; plane < tree_.layout().planes(); ++plane) label_nodes(plane);
  }

  void label_leaf(int64_t leaf) {
    int32_t* sets = sets_.set.get();
    int32_t& of_all = sets_.nodes[static_cast<size_t>(leaf)];
    const int64_t first = tree_.leaf_row(leaf), last = tree_.leaf_row(leaf + 1);
    if (of_all == many_sets) {
      for (int64_t row = first; row < last; ++row) {
        sets[row] = joined_.find(row);
        if (sets[row] == row) begin_set(row);
      }
      of_all = common_set(sets + first, sets + last);
    } else {
      // Rows of one set stay in one set.
      const int32_t set = joined_.find(of_all);
      if (set != of_all) std::fill(sets + first, sets + last, set);
      if (first <= set && set < last) begin_set(set);
      of_all = set;
    }
  }

  void begin_set(int64_t set) {
    sets_.least_weight[set].store(bits_of_weight(no_weight), std::memory_order_relaxed);
    sets_.pair[set].store(no_pair, std::memory_order_relaxed);
    if (sets_.particles.known) sets_.unknown[set].store(bits_of_weight(no_weight), std::memory_order_relaxed);
  }

  void label_nodes(int plane) {
    int32_t* nodes = sets_.nodes.data() + tree_.layout().starts[static_cast<size_t>(plane)];
    const int32_t* below = sets_.nodes.data() + tree_.layout().starts[static_cast<size_t>(plane - 1)];
    parallel_.blocks(tree_.layout().sizes[static_cast<size_t>(plane)], 1 << 10, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        nodes[i] = common_set(below + tree_.first_child(plane, i), below + tree_.first_child(plane, i + 1));
    });
  }

  static int32_t common_set(const int32_t* begin, const int32_t* end) {
    const bool uniform = begin < end && std::all_of(begin, end, [&](int32_t set) { return set == *begin; });
    return uniform ? *begin : many_sets;
  }

  // Whether no row of a leaf can have an edge with the least weight of its set.
  bool is_settled(int64_t leaf) {
    const int32_t set = sets_.nodes[static_cast<size_t>(leaf)];
    return set != many_sets && sets_.floors[static_cast<size_t>(leaf)] > sets_.least_of(set);
  }

  // Call work(row, set) for the rows that may have an edge with the least weight of their set, and update the leaf's
  // floor.
  template <typename Work>
  void each_open_row(int64_t leaf, const Work& work) {
    if (is_settled(leaf)) return;
    double floor = no_weight;
    for (int64_t row = tree_.leaf_row(leaf); row < tree_.leaf_row(leaf + 1); ++row) {
      const int32_t set = sets_.set[row];
      if (sets_.floor[row] <= sets_.least_of(set)) work(row, set);
      floor = std::min(floor, sets_.floor[row]);
    }
    sets_.floors[static_cast<size_t>(leaf)] = floor;
  }

  // Every row offers its edge. List the leaves with rows that may have to search.
  void offer() {
    candidates_.clear();
    searching_.clear();
    parallel_.blocks(tree_.leaves(), grain, [&](int64_t begin, int64_t end) {
      std::vector<int32_t> candidates, leaves;
      for (int64_t leaf = begin; leaf < end; ++leaf)
        if (!offer_from(leaf, candidates)) leaves.push_back(static_cast<int32_t>(leaf));
      candidates_.add(candidates);
      searching_.add(leaves);
    });
  }

  // Returns whether no row has to search.
  bool offer_from(int64_t leaf, std::vector<int32_t>& candidates) {
    bool all = true;
    each_open_row(leaf, [&](int64_t row, int32_t set) {
      if (!takes_part(row)) return;
      if (!sets_.is_lightest[row] || sets_.set[sets_.to[row]] == set) take_near(row, set);
      if (sets_.is_lightest[row]) return offer_sure(row, set, candidates);
      if (sets_.to[row] >= 0) sets_.offer(set, sets_.weight(row, sets_.to[row]));
      all = false;
    });
    return all;
  }

  // The lightest edge of a set is that of a candidate.
  void offer_sure(int64_t row, int32_t set, std::vector<int32_t>& candidates) {
    if (sets_.offer(set, sets_.floor[row])) candidates.push_back(static_cast<int32_t>(row));
  }

  // Find the lightest edge of a row to its near particles in other sets, and a floor from the others' distances.
  void take_near(int64_t row, int32_t set) {
    Nearest nearest{no_weight, no_pair, sets_.to[row]};
    if (nearest.to >= 0 && sets_.set[nearest.to] == set) nearest.to = -1;
    if (nearest.to >= 0) nearest = {sets_.weight(row, nearest.to), sets_.rows_of(row, nearest.to), nearest.to};
    const double other_weights = std::max(sets_.floor[row], look_through(row, set, nearest));
    sets_.to[row] = nearest.to;
    sets_.is_lightest[row] = nearest.to >= 0 && nearest.weight < other_weights;
    sets_.floor[row] = std::min(nearest.weight, other_weights);
  }

  struct Nearest {
    double weight;
    uint64_t pair;
    int32_t to;
  };

  // Look for a lighter edge among the near particles, nearest first. Returns a lower limit of the weights of other
  // edges. A particle at the end of the list limits those that are not in the list, or any one those after it.
  double look_through(int64_t row, int32_t set, Nearest& nearest) {
    const int64_t k = sets_.in.near.dims[1];
    const int32_t* neighbours = sets_.in.near + row * k;
    double limit = no_weight;  // of edges to particles that equal points represent
    const int64_t start = sets_.seen[row];
    if (start == used_up || neighbours[0] == unknown_near) return 0;
    int64_t i = start;
    for (; i < k && neighbours[i] >= 0 && sets_.set[neighbours[i]] == set; ++i) {
    }
    sets_.seen[row] = static_cast<uint8_t>(std::min<int64_t>(i, used_up - 1));
    if (i == k) return floor_beyond_all(row, set, neighbours, k);
    for (; i < k && neighbours[i] >= 0; ++i) {
      const int32_t neighbour = neighbours[i];
      const double distance = sets_.rule.weight(sets_.pos(row), sets_.pos(neighbour)),
                   beyond = floor_from(row, distance);
      if (beyond > nearest.weight) return std::min(limit, beyond);
      if (sets_.set[neighbour] == set) continue;
      if (!takes_part(neighbour)) {
        limit = std::min(limit, beyond);
        continue;
      }
      const double weight = sets_.weight_at(row, neighbour, distance);
      const uint64_t pair = sets_.rows_of(row, neighbour);
      if (weight < nearest.weight || (weight == nearest.weight && pair < nearest.pair))
        nearest = {weight, pair, neighbour};
    }
    return i == k ? std::min(limit, floor_beyond(row, neighbours[k - 1])) : limit;
  }

  // A lower limit of the weights of edges to particles that are not in a row's list of `k` near ones, which are all in
  // its set.
  double floor_beyond_all(int64_t row, int32_t set, const int32_t* neighbours, int64_t k) {
    const double last = sets_.rule.weight(sets_.pos(row), sets_.pos(neighbours[k - 1])), floor = floor_from(row, last);
    if constexpr (D == 2) {
      if (!sets_.particles.has_core()) {
        // Most rows never need to know whether they are enclosed.
        if (floor > sets_.least_of(set)) return floor;
        sets_.seen[row] = used_up;
        if (is_enclosed(sets_.rule, sets_.particles, row, neighbours, k, last)) return enclosure_reach2 * last;
      }
    }
    sets_.seen[row] = used_up;
    return floor;
  }

  // A lower limit of the weights of edges to particles that are not nearer than another one.
  double floor_beyond(int64_t row, int64_t last) {
    return floor_from(row, sets_.rule.weight(sets_.pos(row), sets_.pos(last)));
  }

  // The same from the weight of the distance to it.
  double floor_from(int64_t row, double distance) {
    const double floor = sets_.rule.surely(distance);
    return sets_.particles.has_core() ? std::max(floor, sets_.core[row]) : floor;
  }

  void search() {
    struct Worker {
      EdgeWalk<D, T> walk;
      std::vector<int32_t> places, candidates;
    };
    Spares<Worker>().blocks(
        parallel_, searching_.count(), 16, [&] { return Worker{EdgeWalk<D, T>(sets_, leaf_capacity_), {}, {}}; },
        [&](Worker& worker, int64_t begin, int64_t end) {
          worker.candidates.clear();
          for (int64_t i = begin; i < end; ++i) search_from(searching_[i], worker);
          candidates_.add(worker.candidates);
        });
  }

  template <typename Worker>
  void search_from(int64_t leaf, Worker& worker) {
    const int64_t first = tree_.leaf_row(leaf);
    worker.places.clear();
    each_open_row(leaf, [&](int64_t row, int32_t) {
      if (!sets_.is_lightest[row] && takes_part(row)) worker.places.push_back(static_cast<int32_t>(row - first));
    });
    if (worker.places.empty()) return;
    worker.walk.search(leaf, worker.places);
    for (int32_t place : worker.places) {
      const int64_t row = first + place;
      if (sets_.is_lightest[row]) offer_sure(row, sets_.set[row], worker.candidates);
    }
  }

  // Find the first pair among the edges with the least weight of each set.
  void choose() {
    parallel_.blocks(candidates_.count(), 1 << 12, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int32_t row = candidates_[i], set = sets_.set[row];
        if (sets_.floor[row] == sets_.least_of(set)) sets_.offer_pair(set, sets_.rows_of(row, sets_.to[row]));
      }
    });
  }

  void join() {
    each_adding(candidates_.count(), [&](int64_t i, std::vector<Edge>& added) { join_from(candidates_[i], added); });
  }

  // If two sets have chosen the same edge, one of them adds it.
  void join_from(int64_t row, std::vector<Edge>& added) {
    const int32_t to = sets_.to[row], set = sets_.set[row], other = sets_.set[to];
    const uint64_t pair = sets_.rows_of(row, to);
    if (sets_.pair[set].load(std::memory_order_relaxed) != pair) return;
    const bool mutual =
        sets_.least_of(other) == sets_.floor[row] && sets_.pair[other].load(std::memory_order_relaxed) == pair;
    if (mutual && set > other) return;
    const double weight = sets_.floor[row];
    add_lightest(weight, row, to, sets_.is_certain(set, weight) || (mutual && sets_.is_certain(other, weight)), added);
  }

  // The first round: one row of each set takes part, so that its lightest edge is that of the set.
  void join_single_rows() {
    each_row([&](int64_t row) { sets_.set[row] = joined_.find(row); });
    each_row([&](int64_t row) {
      if (takes_part(row)) take_near(row, sets_.set[row]);
    });
    each_adding(sets_.num, [&](int64_t row, std::vector<Edge>& added) {
      const int32_t to = sets_.to[row];
      if (!sets_.is_lightest[row]) return;
      const bool mutual = sets_.is_lightest[to] && sets_.to[to] == row;
      if (mutual && row > to) return;
      const double weight = sets_.floor[row];
      add_lightest(weight, row, to, is_row_certain(row, weight) || (mutual && is_row_certain(to, weight)), added);
    });
  }

  bool is_row_certain(int64_t row, double weight) const {
    return !sets_.particles.known || weight < sets_.rule.beyond(sets_.particles.known[row]);
  }

  const Parallel& parallel_;
  EdgeSets<D, T>& sets_;
  const StagedTree<D, T>& tree_;
  UnionFind joined_;
  UnionFind certain_;  // the rank's particles that certain edges join; empty if all particles are in the tree
  const EdgeList edges_;
  // In each round:
  SharedList candidates_;  // rows whose lightest edge may be that of their set
  SharedList searching_;   // leaves with rows that may have to search
  std::atomic<int64_t> count_{0};
  int64_t edge_count_ = 0;  // number of edges
  const int64_t leaf_capacity_;
};

}  // namespace jztree
