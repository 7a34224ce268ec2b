// The walk of a warp through the hierarchy of the sources, for balls around up to 32 queries, one per lane. The balls
// of a query are concentric, with ascending radii. ball_walk.h explains walks.
//
// A step tests 32 nodes, one per lane. The balls of the queries together decide which nodes are skipped, which are in
// the same ball of every query, and which are opened. The particles of a leaf that may be in a ball go to shared
// memory, and each lane compares its query with all of them.
#pragma once

#include <cstdint>

#include "common/cuda/boxes.cuh"
#include "common/cuda/node_stack.cuh"
#include "common/cuda/share.cuh"
#include "common/cuda/tree.cuh"
#include "common/cuda/warp.cuh"
#include "common/cuda/wrapped.cuh"
#include "common/distance_rule.h"

namespace jztree {

template <int D, typename T>
struct BallSetup : BoxSetup<D, T> {
  DistanceRule<D, T> rule;

  __device__ BallSetup(const Lengths& box, const DeviceTree<D, T>& sources, const DeviceTree<D, T>& queries,
                       const int32_t* any_wrapped)
      : BoxSetup<D, T>(box, sources, queries, any_wrapped), rule(this->distance_rule()) {}
};

// The number of balls of a query processed at a time: their bounds are in the lanes of a warp, their tallies in shared
// memory.
constexpr int most_balls = 16;

template <int D, typename T>
struct BallProblem {
  using Setup = BallSetup<D, T>;

  DeviceTree<D, T> sources, queries;
  const int32_t* query_rows;  // null: their index
  const Setup* setup;
  const Within<T>* balls;  // m for all queries, or q * m in the order of output rows
  int64_t number;          // the length of `balls`
  int64_t m;
  int64_t first_ball;  // the current ones
  int at_work;

  __device__ int64_t output_row(int64_t query) const { return query_rows ? query_rows[query] : query; }
  // The current balls of the query in an output row.
  __device__ const Within<T>* balls_of(int64_t row) const { return balls + (number > m ? row * m : 0) + first_ball; }
};

template <int D, typename T>
__global__ void make_balls(Lengths radius, const BallSetup<D, T>* setup, Within<T>* balls) {
  int64_t i = thread_index();
  if (i >= radius.count) return;
  double length = radius[i];
  balls[i] = length >= 0 ? setup->rule.within(length) : Within<T>{};
}

template <int D, typename T, typename Visit>
class BallWalk {
 public:
  // Shared memory of a warp.
  JZTREE_BOTH static constexpr int shared_bytes(int planes) { return row_bytes + NodeStack::bytes(planes); }

  __device__ BallWalk(const BallProblem<D, T>& in, const BallSetup<D, T>& setup, unsigned char* shared)
      : in_(in), setup_(setup), rows_(*reinterpret_cast<StagedRows<D, T>*>(shared)), stack_(shared + row_bytes) {}

  // Process the queries from `tile` on, before `end`, one per lane. visit.node(node, count, ball): every row of a node
  // is in this current ball of every query; called by all lanes together. visit.row(row, ball): a row is in the lane's
  // ball. Rows are visited in order.
  __device__ void run(int64_t tile, int64_t end, Visit& visit) {
    JZTREE_COUNT("group of queries");
    set_group(tile, end);
    NodeRange range;
    for (stack_.begin(in_.sources); stack_.next(&range);) step(range, visit);
  }

  // The same outwards: for an answer that does not need all sources. There is one ball, and rows are in no particular
  // order. All lanes call together: visit.needs(node): whether a node may change any answer; visit.nodes(node, whole,
  // out): `whole` rows of the lane's node are in the ball of every query, `out` rows are outside; visit.asks(leaf):
  // whether a leaf may change the lane's answer; visit.leaf_done(rows): the rows of a leaf were visited; visit.done():
  // no node can change any answer.
  __device__ void run_outwards(int64_t tile, int64_t end, Visit& visit) {
    set_group(tile, end);
    NodeRange range;
    for (stack_.begin(in_.sources); !visit.done() && stack_.next(&range);) step_outwards(range, visit);
    __syncwarp();  // the stack may hold nodes, and the next group overwrites it
  }

 private:
  static constexpr int row_bytes = static_cast<int>(sizeof(StagedRows<D, T>));

  __device__ void set_group(int64_t tile, int64_t end) {
    query_ = tile + lane_index();
    used_ = query_ < end;
    balls_ = used_ ? in_.balls_of(in_.output_row(query_)) : nullptr;
    if (used_) point_ = load_point(in_.queries.pos, query_, setup_.scale);
    box_ = box_of_lanes(point_, used_);
    largest_possibly2_ = used_ ? balls_[in_.at_work - 1].possibly2 : T{-1};
    largest_surely2_ = used_ ? balls_[in_.at_work - 1].surely2 : T{-1};
    bound();
  }

  // Lane j gets two limits of the j-th balls: the largest possible reach and the smallest sure reach over the queries.
  // A negative radius does not even reach sources at the same place.
  __device__ void bound() {
    constexpr T infinity = std::numeric_limits<T>::infinity();
    for (int j = 0; j < in_.at_work; ++j) {
      T possibly = warp_max(used_ ? balls_[j].possibly2 : T{-1}),
        surely = warp_min(used_ ? balls_[j].surely2 : infinity);
      bool all_reach = __all_sync(all_lanes, !used_ || balls_[j].possibly2 >= 0);
      each_reaches_ = all_reach ? each_reaches_ | 1u << j : each_reaches_ & ~(1u << j);
      if (lane_index() == j) {
        possibly2_ = possibly;
        surely2_ = surely;
      }
    }
  }

  // Test up to 32 nodes.
  __device__ void step(const NodeRange& range, Visit& visit) {
    JZTREE_COUNT("step");
    const LaneNode mine(in_.sources, range);
    bool reached = mine.has_rows();
    T gap2 = 0, reach2 = 0;
    bool together = false;  // node and queries are at the same place
    if (reached) measure(load_box(in_.sources, mine.node, setup_.scale.factor), &gap2, &reach2, &together);
    int first_ball = 0, first_sure = 0;  // the first ball that may contain it, and the first that surely does
    for (int j = 0; j < in_.at_work; ++j) {
      T possibly = __shfl_sync(all_lanes, possibly2_, j), surely = __shfl_sync(all_lanes, surely2_, j);
      first_ball += gap2 > possibly;
      first_sure += !(reach2 < surely || (together && (each_reaches_ >> j & 1)));
    }
    reached &= first_ball < in_.at_work;
    bool enclosed = Visit::together && reached && first_ball >= first_sure;
    if constexpr (Visit::together) {
      for (unsigned enclosing = __ballot_sync(all_lanes, enclosed); enclosing; enclosing &= enclosing - 1) {
        JZTREE_COUNT("whole node");
        int lane = __ffs(static_cast<int>(enclosing)) - 1;
        visit.node(__shfl_sync(all_lanes, mine.node, lane), __shfl_sync(all_lanes, mine.end - mine.first, lane),
                   __shfl_sync(all_lanes, first_sure, lane));
      }
    }
    stack_.open(in_.sources, range, mine, __ballot_sync(all_lanes, reached && !enclosed),
                [&](uint32_t leaf, uint32_t first, uint32_t end) { open_leaf(leaf, first, end, used_, visit); });
  }

  // The same outwards. The nearest node is opened first.
  __device__ void step_outwards(const NodeRange& range, Visit& visit) {
    const LaneNode mine(in_.sources, range);
    const T possibly = __shfl_sync(all_lanes, possibly2_, 0), surely = __shfl_sync(all_lanes, surely2_, 0);
    const uint32_t rows = mine.end - mine.first;
    T gap2 = std::numeric_limits<T>::infinity(), reach2 = gap2;
    bool together = false;
    if (rows > 0) measure(load_box(in_.sources, mine.node, setup_.scale.factor), &gap2, &reach2, &together);
    const bool reached = rows > 0 && gap2 <= possibly && visit.needs(mine.node);
    const bool enclosed = reached && (reach2 < surely || (together && (each_reaches_ & 1)));
    visit.nodes(mine.node, enclosed ? rows : 0, reached ? 0 : rows);
    if (visit.done()) return;
    const bool opened = reached && !enclosed;
    const T nearest = warp_min(opened ? gap2 : std::numeric_limits<T>::infinity());
    const unsigned all = __ballot_sync(all_lanes, opened), ties = __ballot_sync(all_lanes, opened && gap2 == nearest);
    const unsigned first = ties & ~(ties - 1);
    // The stack returns the last nodes first.
    for (unsigned nodes : {range.plane > 0 ? all & ~first : first, range.plane > 0 ? first : all & ~first})
      stack_.open(in_.sources, range, mine, nodes, [&](uint32_t leaf, uint32_t begin, uint32_t end) {
        const bool asks = used_ && visit.asks(leaf);
        if (__any_sync(all_lanes, asks)) open_leaf(leaf, begin, end, asks, visit);
        visit.leaf_done(end - begin);
      });
  }

  __device__ void measure(const NodeBox<D, T>& node, T* gap2, T* reach2, bool* together) const {
    *gap2 = least_distance2(box_.low, box_.high, node, setup_.gap_period);
    T sum = 0, reach_sum = 0;
    for (int d = 0; d < D; ++d) {
      T reach = interval_reach(box_.low[d], box_.high[d], node.low[d], node.high[d], setup_.scale.period[d]);
      sum += reach * reach;
      reach_sum += reach;
    }
    *reach2 = sum * above_one<T>;
    *together = setup_.rule.exact_zero && reach_sum == 0;
  }

  // compares: whether this lane takes part.
  __device__ void open_leaf(uint32_t leaf, uint32_t first, uint32_t end, bool compares, Visit& visit) {
    JZTREE_COUNT("leaf");
    const bool around = wraps_around(box_, load_box(in_.sources, leaf, setup_.scale.factor), setup_.scale);
    const T reach2 = __shfl_sync(all_lanes, possibly2_, in_.at_work - 1);
    for (uint32_t tile = first; tile < end; tile += warp_size) {
      JZTREE_COUNT("tile of rows");
      const int count = rows_.take(
          in_.sources.pos, tile, end, setup_.scale,
          [&](uint32_t, const RowPoint<D, T>& point) {
            return least_distance2(point.x, point.x, box_, setup_.gap_period) <= reach2;
          },
          [](int) {});
      if (!compares) continue;
      if (around) {
        compare<true>(count, visit);
      } else {
        compare<false>(count, visit);
      }
    }
  }

  template <bool Around>
  __device__ void compare(int count, Visit& visit) {
    for (int i = 0; i < count; ++i) {
      JZTREE_COUNT("row");
      const T distance2 = squared_distance<Around>(point_, RowPoint<D, T>(rows_.point[i]), setup_.scale);
      if (distance2 <= largest_possibly2_) place(rows_.row[i], distance2, visit);
    }
  }

  // Find the smallest ball that holds a row. The limits of the largest ball are in registers.
  __device__ void place(uint32_t row, T distance2, Visit& visit) {
    for (int ball = 0; ball < in_.at_work; ++ball) {
      JZTREE_COUNT("ball of a row");
      const bool largest = ball + 1 == in_.at_work;
      if (!largest && distance2 > balls_[ball].possibly2) continue;
      if (!(distance2 < (largest ? largest_surely2_ : balls_[ball].surely2)) &&
          !setup_.rule.is_within_exactly(in_.queries.pos + query_ * D, in_.sources.pos + static_cast<int64_t>(row) * D,
                                         balls_[ball].exact))
        continue;
      visit.row(row, ball);
      return;
    }
  }

  const BallProblem<D, T>& in_;
  const BallSetup<D, T>& setup_;
  StagedRows<D, T>& rows_;
  NodeStack stack_;
  // The lane's query, and the data of the warp's queries.
  int64_t query_ = 0;
  bool used_ = false;
  RowPoint<D, T> point_{};
  const Within<T>* balls_ = nullptr;
  NodeBox<D, T> box_;
  T largest_possibly2_ = -1, largest_surely2_ = -1;  // of the lane's largest ball
  T possibly2_ = -1, surely2_ = -1;
  unsigned each_reaches_ = 0;  // one bit per ball: whether every query's ball reaches anything
};

// Set up the problem: everything except the walk.
template <int D, typename T>
BallProblem<D, T> set_up(Queue& queue, const Tree<D, T>& sources, const Tree<D, T>& queries, const int32_t* query_rows,
                         const Lengths& radius, int64_t m, const Lengths& box) {
  auto* balls = queue.scratch<Within<T>>(radius.count);
  BallProblem<D, T> problem{on_device(sources), on_device(queries), query_rows, nullptr, balls, radius.count, m, 0, 0};
  auto* wrapped = any_wrapped(queue, box, problem.sources, problem.queries);
  problem.setup = make_setup<BallSetup<D, T>>(queue, box, problem.sources, problem.queries, wrapped);
  queue.launch_over(radius.count, make_balls<D, T>, radius, problem.setup, balls);
  return problem;
}

}  // namespace jztree
