// The walk of a group of queries, a leaf of their hierarchy, through the hierarchy of the sources. Around each query
// there are m concentric balls with ascending radii. It runs on one thread, in the order of rows.
//
// A pair of a query and a source belongs to the first ball that contains it, or to no ball (number m). A node is not
// opened if it is in the same ball for every particle and every query of the group. If the precision of the positions
// cannot decide, the rule decides in float64 (common/distance_rule.h).
//
// A walk outwards is for searches that do not need all sources. It goes from plane to plane, nearest node first, and
// ends when every query has its answer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "common/cpu/leaf_distances.h"
#include "common/cpu/staged_tree.h"
#include "common/distance_rule.h"

namespace jztree {

// Staged sources and queries, and the rule that decides whether they are within a radius.
template <int D, typename T>
struct Staged {
  Scale<D, T> scale;
  StagedTree<D, T> sources, *queries;
  std::unique_ptr<StagedTree<D, T>> others;  // null if the sources are the queries, row by row
  const T *source_pos, *query_pos;           // input positions
  DistanceRule<D, T> rule;
  int64_t most;  // particles in a leaf of either

  Staged(const Parallel& parallel, const Tree<D, T>& source_arrays, const Tree<D, T>& query_arrays, bool self,
         const double* box)
      : scale(box, open_span(box, source_arrays, query_arrays).template for_scale<T>()),
        sources(parallel, source_arrays, scale),
        queries(&sources),
        others(self ? nullptr : std::make_unique<StagedTree<D, T>>(parallel, query_arrays, scale)),
        source_pos(source_arrays.pos),
        query_pos(query_arrays.pos),
        rule(sources.wrapped() || (others && others->wrapped()), sources.kept() && (!others || others->kept()), scale) {
    if (others) queries = others.get();
    most = std::max(largest_leaf(sources), largest_leaf(*queries));
  }
};

// The balls of a group of queries.
template <typename T>
class Balls {
 public:
  explicit Balls(int64_t m)
      : m(m), possibly2_(static_cast<size_t>(m)), surely2_(possibly2_), missing_(possibly2_.size()) {}

  const int64_t m;

  // Set the balls of `count` queries. radius(i, j): the j-th radius of the i-th query.
  template <int D, typename Radius>
  void reset(int64_t count, const DistanceRule<D, T>& rule, const Radius& radius) {
    all_.resize(static_cast<size_t>(count * m));
    outer_.assign(static_cast<size_t>(m * (count + lanes)), T{-1});
    std::fill(possibly2_.begin(), possibly2_.end(), T{-1});
    std::fill(surely2_.begin(), surely2_.end(), std::numeric_limits<T>::infinity());
    std::fill(missing_.begin(), missing_.end(), false);
    stride_ = count + lanes;
    double last = std::numeric_limits<double>::quiet_NaN();  // all queries often share a radius
    Within<T> ball;
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < m; ++j) {
        const double length = radius(i, j);
        if (length != last) {
          ball = length >= 0 ? rule.within(length) : Within<T>{};
          // For comparison by "at most".
          ball.surely2 = std::nextafter(ball.surely2, -std::numeric_limits<T>::infinity());
          last = length;
        }
        all_[static_cast<size_t>(i * m + j)] = ball;
        outer_[static_cast<size_t>(j * stride_ + i)] = ball.possibly2;
        possibly2_[static_cast<size_t>(j)] = std::max(possibly2_[static_cast<size_t>(j)], ball.possibly2);
        surely2_[static_cast<size_t>(j)] = std::min(surely2_[static_cast<size_t>(j)], ball.surely2);
        if (!(length >= 0)) missing_[static_cast<size_t>(j)] = true;
      }
  }

  const Within<T>* of(int64_t i) const { return all_.data() + i * m; }
  // Upper limits of the reach of the j-th balls, for the queries from the i-th on.
  const T* outer(int64_t i, int64_t j) const { return outer_.data() + j * stride_ + i; }
  // The largest possible reach and the smallest sure reach of the queries' j-th balls.
  T possibly2(int64_t j) const { return possibly2_[static_cast<size_t>(j)]; }
  T surely2(int64_t j) const { return surely2_[static_cast<size_t>(j)]; }
  // Whether the j-th ball of some query is missing, so that it does not even contain sources at the same place.
  bool missing(int64_t j) const { return missing_[static_cast<size_t>(j)]; }

 private:
  std::vector<Within<T>> all_;
  std::vector<T> outer_, possibly2_, surely2_;
  std::vector<bool> missing_;
  int64_t stride_ = 0;
};

template <int D, typename T>
class BallWalk {
 public:
  BallWalk(const Staged<D, T>& staged, int64_t m)
      : balls(m),
        staged_(staged),
        sources_(staged.sources),
        queries_(*staged.queries),
        leaf_distances_(staged.scale, staged.most) {}

  Balls<T> balls;

  // Make this leaf the group. radius(i, j): the j-th radius of the leaf's i-th query.
  template <typename Radius>
  void set_group(int64_t leaf, const Radius& radius) {
    begin_ = queries_.leaf_row(leaf);
    count_ = queries_.leaf_row(leaf + 1) - begin_;
    balls.reset(count_, staged_.rule, radius);
    T half_diagonal2 = 0;
    for (int d = 0; d < D; ++d) {
      low_[d] = queries_.low[d][leaf];
      high_[d] = queries_.high[d][leaf];
      T half = std::min((high_[d] - low_[d]) / 2, staged_.scale.period[d] / 4);
      half_diagonal2 += half * half;
    }
    // If the group itself is wider than this, no node is in the ball of every query.
    whole_nodes_ = half_diagonal2 == 0 || half_diagonal2 * below_one<T> <= balls.surely2(balls.m - 1);
  }
  int64_t begin() const { return begin_; }
  int64_t count() const { return count_; }

  // With Visit::together, calls visit.node(node, first, end, ball) for a node whose rows, from first to end, are in
  // this ball of every query. node: its index in the flat arrays. For the other rows, calls visit.rows(i, first,
  // chosen, ball): the rows from `first` on with a bit in `chosen` are in this ball of the i-th query. With
  // Visit::of_numbers, calls visit.number(i, number, ball) instead, with the number of rows alone.
  template <typename Visit>
  void walk(Visit& visit) {
    if (count_ == 0) return;
    int top = sources_.layout().planes() - 1;
    open(top, 0, sources_.layout().sizes[static_cast<size_t>(top)], 0, balls.m, visit);
  }

  // The same outwards, for one ball. The visit has four more members. needs(node): whether a node may change any
  // answer. asking(block, leaf): one bit per query from `block` on, set if the leaf may change the query's answer.
  // most_left(rows): receives an upper limit of the rows in the ball that are still to be visited. done(): whether no
  // node can change any answer.
  template <typename Visit>
  void walk_outwards(Visit& visit) {
    if (count_ == 0) return;
    int plane = sources_.layout().planes() - 1;
    below_.clear();
    look_at(plane, 0, sources_.layout().sizes[static_cast<size_t>(plane)], visit);
    for (; !below_.empty() && !visit.done(); --plane) {
      near_.swap(below_);
      below_.clear();
      open_near(plane, visit);
    }
  }

 private:
  // Test nodes [begin, end) of a plane. The caller knows that no node is in a ball before `from` or outside ball `to`.
  template <typename Visit>
  void open(int plane, int64_t begin, int64_t end, int64_t from, int64_t to, Visit& visit) {
    constexpr int64_t block = 2 * lanes;
    int64_t start = sources_.layout().starts[static_cast<size_t>(plane)];
    for (int64_t first = begin; first < end; first += block) {
      T gap2[block], reach2[block];
      int64_t number = std::min(block, end - first);
      node_distances(sources_, low_, high_, leaf_distances_.gap_period(), start + first, number, gap2);
      const bool whole_nodes = Visit::together && whole_nodes_;
      if (whole_nodes) node_reaches(sources_, low_, high_, staged_.scale.period, start + first, number, reach2);
      for (int64_t i = 0; i < number; ++i) {
        int64_t node = first + i, row = sources_.first_row(plane, node), behind = sources_.first_row(plane, node + 1);
        if (row == behind) continue;
        int64_t first_ball = from, first_sure = to;
        while (first_ball < first_sure && gap2[i] > balls.possibly2(first_ball)) ++first_ball;
        if (first_ball == balls.m) continue;
        if (whole_nodes)
          while (first_sure > first_ball && all_within(start + node, reach2[i], first_sure - 1)) --first_sure;
        if (Visit::together && first_ball == first_sure) {
          if constexpr (Visit::together) visit.node(start + node, row, behind, first_sure);
        } else if (plane > 0) {
          open(plane - 1, sources_.first_child(plane, node), sources_.first_child(plane, node + 1), first_ball,
               first_sure, visit);
        } else {
          open_leaf(node, first_ball, first_sure, visit);
        }
      }
    }
  }

  // A node to be opened.
  struct NearNode {
    T gap2;
    int64_t node;

    bool operator<(const NearNode& other) const { return gap2 != other.gap2 ? gap2 < other.gap2 : node < other.node; }
  };

  // Test nodes [begin, end) of a plane: visit those that are wholly within, and keep those that may be partly within.
  template <typename Visit>
  void look_at(int plane, int64_t begin, int64_t end, Visit& visit) {
    constexpr int64_t block = 2 * lanes;
    const int64_t start = sources_.layout().starts[static_cast<size_t>(plane)];
    for (int64_t first = begin; first < end; first += block) {
      T gap2[block], reach2[block];
      const int64_t number = std::min(block, end - first);
      node_distances(sources_, low_, high_, leaf_distances_.gap_period(), start + first, number, gap2);
      if (whole_nodes_) node_reaches(sources_, low_, high_, staged_.scale.period, start + first, number, reach2);
      for (int64_t i = 0; i < number; ++i) {
        const int64_t node = first + i, row = sources_.first_row(plane, node);
        const int64_t behind = sources_.first_row(plane, node + 1);
        if (row == behind || gap2[i] > balls.possibly2(0) || !visit.needs(start + node)) continue;
        if (whole_nodes_ && all_within(start + node, reach2[i], 0)) {
          visit.node(start + node, row, behind, 0);
        } else {
          below_.push_back({gap2[i], node});
        }
      }
    }
  }

  template <typename Visit>
  void open_near(int plane, Visit& visit) {
    auto rows = [&](int64_t node) { return sources_.first_row(plane, node + 1) - sources_.first_row(plane, node); };
    int64_t rest_rows = 0;
    for (const NearNode& one : near_) rest_rows += rows(one.node);
    visit.most_left(rest_rows);
    std::iter_swap(near_.begin(), std::min_element(near_.begin(), near_.end()));
    for (const NearNode& one : near_) {
      if (visit.done()) break;
      const int64_t node = one.node;
      if (!visit.needs(sources_.layout().starts[static_cast<size_t>(plane)] + node)) continue;
      if (plane > 0) {
        look_at(plane - 1, sources_.first_child(plane, node), sources_.first_child(plane, node + 1), visit);
      } else {
        open_leaf_outwards(node, visit);
        visit.most_left(rest_rows -= rows(node));
      }
    }
  }

  template <typename Visit>
  void open_leaf_outwards(int64_t leaf, Visit& visit) {
    leaf_distances_.set_leaf(sources_, leaf, low_, high_);
    const int64_t rows = sources_.leaf_row(leaf);
    for (int64_t block = 0; block < count_; block += lanes) {
      uint32_t asking = visit.asking(block, leaf);
      if (asking == 0) continue;
      Lanes<T> radius2;
      load(balls.outer(block, 0), radius2);
      asking &= leaf_distances_.within(queries_, begin_ + block, count_ - block, radius2);
      leaf_distances_.each(queries_, begin_ + block, asking,
                           [&](int64_t i) { return Last<Visit>(*this, block + i, rows, 0, visit); });
    }
  }

  bool all_within(int64_t node, T reach2, int64_t ball) const {
    if (reach2 <= balls.surely2(ball)) return true;
    if (reach2 > 0 || !staged_.rule.exact_zero || balls.missing(ball)) return false;
    T reach = 0;  // its square may have underflowed
    for (int d = 0; d < D; ++d)
      reach +=
          interval_reach(low_[d], high_[d], sources_.low[d][node], sources_.high[d][node], staged_.scale.period[d]);
    return reach == 0;
  }

  template <typename Visit>
  void open_leaf(int64_t leaf, int64_t from, int64_t to, Visit& visit) {
    leaf_distances_.set_leaf(sources_, leaf, low_, high_);
    int64_t last = std::min(to, balls.m - 1), rows = sources_.leaf_row(leaf);
    for (int64_t block = 0; block < count_; block += lanes) {
      Lanes<T> radius2;
      load(balls.outer(block, last), radius2);
      uint32_t open = leaf_distances_.within(queries_, begin_ + block, count_ - block, radius2);
      if (to == balls.m && from + 1 == to) {
        leaf_distances_.each(queries_, begin_ + block, open,
                             [&](int64_t i) { return Last<Visit>(*this, block + i, rows, from, visit); });
      } else {
        leaf_distances_.each(queries_, begin_ + block, open,
                             [&](int64_t i) { return Several<Visit>{*this, block + i, rows, from, to, visit}; });
      }
    }
  }

  // The rows from `row` on with a bit in `candidates` that are in a ball of the i-th query.
  uint32_t within(int64_t i, int64_t row, uint32_t candidates, const Lanes<T>& distance2, const Within<T>& ball,
                  const Lanes<T>& possibly2, const Lanes<T>& surely2) const {
    uint32_t possibly = candidates & lanes_at_most(distance2, possibly2);
    uint32_t surely = candidates & lanes_at_most(distance2, surely2);
    if (possibly != surely) surely |= decide(i, row, possibly & ~surely, ball);
    return surely;
  }

  JZTREE_APART uint32_t decide(int64_t i, int64_t row, uint32_t unsure, const Within<T>& ball) const {
    uint32_t within = 0;
    for (; unsure != 0; unsure &= unsure - 1) {
      int lane = __builtin_ctz(unsure);
      if (staged_.rule.is_within_exactly(staged_.query_pos + (begin_ + i) * D, staged_.source_pos + (row + lane) * D,
                                         ball.exact))
        within |= 1u << lane;
    }
    return within;
  }

  // A query's comparison with a leaf that only its last ball cuts. It has no branch on the results, because such a
  // branch would be unpredictable.
  template <typename Visit>
  class Last {
   public:
    Last(const BallWalk& walk, int64_t i, int64_t rows, int64_t ball, Visit& visit)
        : walk_(walk), i_(i), rows_(rows), index_(ball), visit_(visit), ball_(walk.balls.of(i)[ball]) {}

    void operator()(int64_t first, uint32_t used, const Lanes<T>& distance2) {
      uint32_t within =
          walk_.within(i_, rows_ + first, used, distance2, ball_, Lanes<T>(ball_.possibly2), Lanes<T>(ball_.surely2));
      if constexpr (Visit::of_numbers) {
        number_ += __builtin_popcount(within);
      } else {
        visit_.rows(i_, rows_ + first, within, index_);
      }
    }
    void done() {
      if constexpr (Visit::of_numbers) visit_.number(i_, number_, index_);
    }

   private:
    const BallWalk& walk_;
    const int64_t i_, rows_, index_;
    Visit& visit_;
    const Within<T> ball_;
    int32_t number_ = 0;
  };

  // The same for a leaf that several balls may cut, or that is wholly in one.
  template <typename Visit>
  struct Several {
    const BallWalk& walk;
    const int64_t i, rows, from, to;
    Visit& visit;

    void operator()(int64_t first, uint32_t candidates, const Lanes<T>& distance2) {
      const Within<T>* balls = walk.balls.of(i);
      for (int64_t ball = from; ball < to && candidates != 0; ++ball) {
        uint32_t within = walk.within(i, rows + first, candidates, distance2, balls[ball],
                                      Lanes<T>(balls[ball].possibly2), Lanes<T>(balls[ball].surely2));
        if (within != 0) add(first, within, ball);
        candidates &= ~within;
      }
      if (candidates != 0 && to < walk.balls.m) add(first, candidates, to);
    }
    void add(int64_t first, uint32_t within, int64_t ball) {
      if constexpr (Visit::of_numbers) {
        visit.number(i, __builtin_popcount(within), ball);
      } else {
        visit.rows(i, rows + first, within, ball);
      }
    }
    void done() {}
  };

  const Staged<D, T>& staged_;
  const StagedTree<D, T>&sources_, &queries_;
  LeafDistances<D, T> leaf_distances_;
  // The current group.
  int64_t begin_ = 0, count_ = 0;
  T low_[D], high_[D];
  bool whole_nodes_ = false;
  // For a walk outwards: nodes of the current plane and of the plane below.
  std::vector<NearNode> near_, below_;
};

}  // namespace jztree
