// The walk of one group of queries through the sources' hierarchy.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include "common/cpu/leaf_distances.h"
#include "common/cpu/staged_tree.h"
#include "knn_limit.h"
#include "knn_output.h"
#include "make_kbest.h"

namespace jztree {

// The walk of one thread: the lists and work arrays, used for one group after another. From: the dtype of the
// positions.
template <int D, typename T, typename From>
class Walk {
  using Key = Candidate<T>;

 public:
  Walk(const StagedTree<D, T>& sources, const StagedTree<D, T>& queries, const Scale<D, T>& scale, int64_t max_leaf,
       const Limits<D, T, From>& limits, const Output<D, From>& out)
      : sources_(sources),
        queries_(queries),
        scale_(scale),
        limits_(limits),
        self_(out.own_offset >= 0),
        own_first_(self_ && !out.exclude_self),
        // The search in float64 that follows one in float32 starts without bounds.
        bounded_by_found_(out.has_bounds && std::is_same<T, From>::value),
        out_(out),
        answers_(sources, queries, out),
        lists_(out.k, max_leaf),
        leaf_distances_(scale, max_leaf),
        sorted_(static_cast<size_t>(KBest<T>::room_for(out.k))) {
    for (int d = 0; d < D; ++d) rounding_[d] = sources.rounding[d] + queries.rounding[d];
  }

  // Answer the queries of a leaf of the queries' hierarchy, or only those marked in `asked`. A query is `lost` if its
  // squared distances have lost digits because they are tiny compared with the extent of the set. Returns false if
  // queries are lost; nothing is written for these. Each query is checked separately, so no answer depends on the other
  // queries of its leaf.
  bool group(int64_t leaf, const std::vector<uint8_t>* asked = nullptr) {
    begin_ = queries_.leaf_row(leaf);
    count_ = queries_.leaf_row(leaf + 1) - begin_;
    if (count_ == 0) return true;
    if (own_first_ && out_.k == 1) {
      write_own();
      return true;
    }
    for (int d = 0; d < D; ++d) {
      low_[d] = queries_.low[d][leaf];
      high_[d] = queries_.high[d][leaf];
      wide_low_[d] = low_[d] - rounding_[d];
      wide_high_[d] = high_[d] + rounding_[d];
    }
    has_rests_ = queries_.has_rests(leaf);
    prefetched_ = 0;
    bounds_.clear();
    reached_.assign(static_cast<size_t>(count_), 1);
    if (limits_.any()) limit();
    if (bounded_by_found_) {
      bound_by_found();
      if (self_ && !reach_others()) return true;
    }
    best_ = &lists_.next();
    search(leaf);
    if (!write_found(asked)) {
      best_ = &lists_.exact();
      search(leaf);
      write_found(asked);
    }
    return std::none_of(lost_.begin(), lost_.end(), [](uint8_t imprecise) { return imprecise; });
  }

  const std::vector<uint8_t>& lost() const { return lost_; }

 private:
  struct Entry {
    Key key;  // lower bound of the squared distance, then the first row
    int plane;
    int64_t node;

    Entry() {}  // so that a growing vector of entries is not filled with zeros
    Entry(Key bound, int of_plane, int64_t i) : key(bound), plane(of_plane), node(i) {}
  };

  // Find the nearest sources of the group's queries.
  void search(int64_t leaf) {
    best_->reset(count_, own_first_);
    worst_ = no_candidate<T>();
    begin_bounds();
    seed_ = -1;
    if (&sources_ == &queries_) {
      visit_leaf<false>(leaf);
      seed_ = leaf;
    } else if (!bounded_by_found_) {
      seed();
    }
    walk<false>();
  }

  // Each query is its own and only neighbour.
  void write_own() const {
    const From distance = 0;
    for (int64_t query = begin_; query < begin_ + count_; ++query) {
      const auto row = static_cast<int32_t>(query + out_.own_offset);
      out_.write(query, &row, &distance, 1);
    }
  }

  // Reset the radius of each searched query to its maximum.
  void begin_bounds() {
    bound_.assign(static_cast<size_t>(count_), worst_);
    radius2_.assign(static_cast<size_t>(count_ + lanes), candidate_distance2<T>(worst_));
    if (bounds_.empty()) return;
    for (int64_t q = 0; q < count_; ++q) set_bound(q, reached_[static_cast<size_t>(q)] ? worst_ : nothing());
    set_worst();
  }

  // Find the queries with sources within their bounds that are not queries. Returns whether any query was found.
  bool reach_others() {
    worst_ = no_candidate<T>();
    begin_bounds();
    reached_.assign(static_cast<size_t>(count_), 0);
    walk<true>();
    return std::any_of(reached_.begin(), reached_.end(), [](uint8_t reached) { return reached; });
  }

  // Write the results of every query that is not lost. Returns false if the lists could not decide all ties.
  bool write_found(const std::vector<uint8_t>* asked) {
    lost_.assign(static_cast<size_t>(count_), 0);
    prefetch_output(count_);
    for (int64_t q = 0; q < count_; ++q) {
      if (q + 4 < count_) out_.template prefetch_row<3>(begin_ + q + 4);
      if (!reached_[static_cast<size_t>(q)]) continue;
      if (!best_->finish(q, sorted_.data())) return false;
      bool is_exact = precise(q);
      lost_[static_cast<size_t>(q)] = !is_exact;
      if (is_exact && (!asked || (*asked)[static_cast<size_t>(q)])) answers_.write(begin_ + q, sorted_.data());
    }
    return true;
  }

  // Bring rows of the output closer, so that no query waits for its rows when they are written. Each visited leaf
  // brings two rows to the second cache, because the walk needs the first cache.
  void prefetch_output(int64_t until) {
    for (; prefetched_ < std::min(until, count_); ++prefetched_) out_.template prefetch_row<2>(begin_ + prefetched_);
  }

  // Whether all squared distances of a query belong to coincident points or are large enough to have all their digits.
  bool precise(int64_t q) const {
    for (const Key* key = sorted_.data(); key < sorted_.data() + out_.k; ++key) {
      T distance2 = candidate_distance2<T>(*key);
      if (distance2 >= scale_.precise2) return true;
      uint32_t row_plus_one = candidate_row_plus_one<T>(*key);
      if (row_plus_one == 0) continue;
      if (distance2 > 0 || !sources_.same_place(row_plus_one - 1, queries_, begin_ + q)) return false;
    }
    return true;
  }

  // Radii begin at the limits, so that nothing farther is tested.
  void limit() {
    limit_.clear();
    for (int64_t q = 0; q < count_; ++q) {
      limit_.push_back(limits_.of(begin_ + q));
      bounds_.push_back(make_candidate<T>(limit_.back().possibly2, no_row));
    }
  }

  // Start with the radii of an earlier search of a part of the sources: the k-th nearest of all sources cannot be
  // farther. The margin is larger than the rounding error of the stored radius.
  void bound_by_found() {
    bounds_.resize(static_cast<size_t>(count_), no_candidate<T>());
    for (int64_t q = 0; q < count_; ++q) {
      // Stored radii are rounded, and the smallest have hardly a correct digit.
      T stored = static_cast<T>(out_.radius[out_.row(begin_ + q) * out_.k + out_.k - 1]);
      T longest = (stored * above_one<T> + std::numeric_limits<T>::denorm_min()) * scale_.factor;
      T bound2 = longest * longest * above_one<T> + std::numeric_limits<T>::min();
      Key& bound = bounds_[static_cast<size_t>(q)];
      if (bound2 < std::numeric_limits<T>::infinity()) bound = std::min(bound, make_candidate<T>(bound2, no_row));
    }
  }

  // A bound that excludes every candidate.
  static Key nothing() { return make_candidate<T>(-std::numeric_limits<T>::infinity(), 0); }

  void set_bound(int64_t q, Key bound) {
    if (!bounds_.empty()) bound = std::min(bound, bounds_[static_cast<size_t>(q)]);
    bound_[static_cast<size_t>(q)] = bound;
    radius2_[static_cast<size_t>(q)] = candidate_distance2<T>(bound);
  }

  // Whether all these rows are queries; see reach_others.
  bool are_queries(int64_t begin, int64_t end) const {
    return begin >= out_.own_offset && end <= out_.own_offset + queries_.leaf_row(queries_.leaves());
  }

  // Push the relevant nodes [begin, end) of a plane, the children of one node. The nearest is pushed last, so that it
  // is visited first. Others: nodes that contain only queries are not relevant.
  template <bool Others>
  void push_nodes(int plane, int64_t begin, int64_t end) {
    int64_t start = sources_.layout().starts[static_cast<size_t>(plane)];
    for (int64_t first = begin; first < end; first += 4 * lanes) {
      T distance2[4 * lanes];
      int64_t count = std::min<int64_t>(4 * lanes, end - first);
      node_distances(sources_, wide_low_, wide_high_, leaf_distances_.gap_period(), start + first, count, distance2);
      Entry near[4 * lanes];
      int64_t number = 0;
      for (int64_t i = 0; i < count; ++i) {
        int64_t node = first + i, row = sources_.first_row(plane, node), end_row = sources_.first_row(plane, node + 1);
        Key key = make_candidate<T>(distance2[i], static_cast<uint32_t>(row + 1));
        near[number] = Entry(key, plane, node);
        number += (key < worst_) & (end_row != row) & !(Others && are_queries(row, end_row));
      }
      push_sorted(near, number);
    }
  }

  // Push the farthest first. Each entry's place is found by counting, because branches on the order would be
  // unpredictable.
  void push_sorted(const Entry* near, int64_t count) {
    size_t bottom = stack_.size();
    stack_.resize(bottom + static_cast<size_t>(count));
    Entry* to = stack_.data() + bottom;
    if (count > 2 * lanes) {
      std::copy(near, near + count, to);
      std::sort(to, to + count, [](const Entry& a, const Entry& b) { return b.key < a.key; });
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      int64_t place = 0;
      for (int64_t j = 0; j < count; ++j) place += near[i].key < near[j].key;
      to[place] = near[i];
    }
  }

  template <bool Others>
  void walk() {
    int top = sources_.layout().planes() - 1;
    stack_.clear();
    push_nodes<Others>(top, 0, sources_.layout().sizes[static_cast<size_t>(top)]);
    while (!stack_.empty()) {
      Entry entry = stack_.back();
      stack_.pop_back();
      if (!(entry.key < worst_)) continue;
      if (entry.plane > 0) {
        push_nodes<Others>(entry.plane - 1, sources_.first_child(entry.plane, entry.node),
                           sources_.first_child(entry.plane, entry.node + 1));
      } else if (Others || entry.node != seed_) {
        visit_leaf<Others>(entry.node);
      }
    }
  }

  // Visit a leaf near the group first, found by descending to the nearest child each time.
  void seed() {
    int plane = sources_.layout().planes() - 1;
    int64_t begin = 0, end = sources_.layout().sizes[static_cast<size_t>(plane)];
    for (;; --plane) {
      stack_.clear();
      push_nodes<false>(plane, begin, end);
      if (stack_.empty()) return;
      int64_t node = stack_.back().node;
      if (plane == 0) {
        visit_leaf<false>(node);
        seed_ = node;
        return;
      }
      begin = sources_.first_child(plane, node);
      end = sources_.first_child(plane, node + 1);
    }
  }

  // Others: only search for sources that are not queries.
  template <bool Others>
  void visit_leaf(int64_t leaf) {
    leaf_distances_.set_leaf(sources_, leaf, low_, high_, rounding_, has_rests_);
    prefetch_output(prefetched_ + 2);
    bool changed = false;
    for (int64_t begin = 0; begin < count_; begin += 4 * lanes) {
      uint64_t open = may_open(begin);
      for (int64_t block = begin; open != 0; block += lanes, open >>= lanes)
        if ((open & 0xffff) != 0)
          changed |= Others ? look_from(block, open & 0xffff) : visit_leaf_from(block, open & 0xffff);
    }
    if (changed) set_worst();
  }

  // Mark the queries with sources of this leaf within their bounds that are not queries.
  bool look_from(int64_t block, uint32_t open) {
    uint32_t rows = leaf_distances_.find_near(queries_, begin_ + block, open, radius2_.data() + block, no_own);
    bool changed = false;
    for (; rows != 0; rows &= rows - 1) {
      const int i = __builtin_ctz(rows);
      bool reached = false;
      leaf_distances_.near(i).each([&](int64_t row, T) { return !(reached = !are_queries(row, row + 1)); });
      if (!reached) continue;
      int64_t q = block + i;
      reached_[static_cast<size_t>(q)] = 1;
      set_bound(q, nothing());
      changed = true;
    }
    return changed;
  }

  // Of the four blocks of queries from `begin` on, return the queries that may be near the leaf. All blocks are tested
  // before the first is searched, so that nothing waits for a mispredicted branch.
  JZTREE_INLINE uint64_t may_open(int64_t begin) const {
    uint64_t open = 0;
    for (int64_t block = begin; block < std::min(begin + 4 * lanes, count_); block += lanes) {
      Lanes<T> radius2;
      load(radius2_.data() + block, radius2);
      open |= static_cast<uint64_t>(leaf_distances_.within(queries_, begin_ + block, count_ - block, radius2))
              << (block - begin);
    }
    return open;
  }

  void set_worst() {
    Key worst = bound_[0];
    for (Key bound : bound_) worst = bound > worst ? bound : worst;
    worst_ = worst;
  }

  // All distances are computed before the first candidate is used, so that nothing waits for a mispredicted branch.
  bool visit_leaf_from(int64_t block, uint32_t open) {
    // A query's own row is already in its list, if it belongs there.
    int64_t self_row = self_ ? begin_ + block + out_.own_offset : no_own;
    int64_t enough = own_first_ ? out_.k - 1 : out_.k;
    uint32_t rows =
        leaf_distances_.find_near(queries_, begin_ + block, open, radius2_.data() + block, self_row, enough);
    bool changed = false;
    for (; rows != 0; rows &= rows - 1) {
      const int i = __builtin_ctz(rows);
      const int64_t q = block + i;
      Near<T> near = leaf_distances_.near(i);
      if (limits_.any()) {
        near = limits_.within(begin_ + q, limit_[static_cast<size_t>(q)], near, kept_);
        if (!near.any()) continue;
      }
      set_bound(q, best_->absorb(q, near));
      changed = true;
    }
    return changed;
  }

  const StagedTree<D, T>&sources_, &queries_;
  const Scale<D, T>& scale_;
  const Limits<D, T, From>& limits_;
  const bool self_, own_first_, bounded_by_found_;
  const Output<D, From>& out_;
  Answers<D, T, From> answers_;
  Lists<T> lists_;
  LeafDistances<D, T, true> leaf_distances_;
  T rounding_[D];  // the largest error of the distance between two boxes
  std::vector<Key> sorted_;
  std::vector<uint8_t> lost_;  // whether each query of the group is lost
  // The current group.
  KBest<T>* best_ = nullptr;
  int64_t begin_ = 0, count_ = 0, seed_ = -1;
  int64_t prefetched_ = 0;        // its first queries, whose rows of the output are prefetched
  T low_[D], high_[D];            // its box
  T wide_low_[D], wide_high_[D];  // the same, widened by that error
  bool has_rests_ = false;
  std::vector<Key> bound_;        // upper bound of each query's k-th candidate
  std::vector<T> radius2_;        // its squared distance, and one more block
  Key worst_;                     // the largest bound
  std::vector<Within<T>> limit_;  // of each query, if there are limits
  std::vector<Key> bounds_;       // initial upper bound of each query's k-th candidate; empty: no bounds
  std::vector<uint8_t> reached_;  // whether each query is searched; the others keep their results
  std::vector<uint64_t> kept_;
  std::vector<Entry> stack_;
};

}  // namespace jztree
