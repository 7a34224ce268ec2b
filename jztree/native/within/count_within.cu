// A warp takes a group of queries, a leaf of their hierarchy, 32 at a time, one per lane, and walks the tree
// (ball_walk.cuh) for up to 16 radii at once. Each lane has its own tallies in shared memory, and adds weights in
// float64 in the order of rows, so sums have the same bits in every run.

#include <algorithm>
#include <cstdint>

#include "ball_walk.cuh"
#include "common/cuda/context.cuh"
#include "count_within.h"
#include "node_values.cuh"
#include "query_tiles.cuh"

namespace jztree {
namespace {

// The counts of a lane in each ball. sum, count: of the warp, one row of lanes per ball.
template <typename T, bool Weighted>
struct Tally {
  static constexpr bool together = true;

  double* sum;
  int32_t* count;
  const T* weight;            // of rows
  const double* node_weight;  // of nodes

  JZTREE_BOTH static constexpr int shared_bytes(int balls) {
    return balls * warp_size * static_cast<int>(sizeof(int32_t) + (Weighted ? sizeof(double) : 0));
  }

  __device__ Tally(unsigned char* shared, int balls, const T* weights, const double* node_weights)
      : sum(reinterpret_cast<double*>(shared)),
        count(reinterpret_cast<int32_t*>(shared) + (Weighted ? 2 * balls * warp_size : 0)),
        weight(weights),
        node_weight(node_weights) {
    for (int ball = 0; ball < balls; ++ball) {
      count[place(ball)] = 0;
      if (Weighted) sum[place(ball)] = 0;
    }
  }

  __device__ static int place(int ball) { return ball * warp_size + lane_index(); }

  __device__ void node(int64_t node, uint32_t rows, int ball) {
    count[place(ball)] += static_cast<int32_t>(rows);
    if (Weighted) sum[place(ball)] += node_weight[node];
  }
  __device__ void row(uint32_t row, int ball) {
    count[place(ball)] += 1;
    if (Weighted) sum[place(ball)] += static_cast<double>(weight[row]);
  }
};

template <typename T>
struct Totals {
  const T* weight;
  const double* node_weight;
  int32_t* count;
  T* sum;
};

template <int D, typename T, bool Weighted>
__global__ void tally_balls(const __grid_constant__ BallProblem<D, T> in, const __grid_constant__ Totals<T> out) {
  using Tallied = Tally<T, Weighted>;
  using Walk = BallWalk<D, T, Tallied>;
  int tally_bytes = Tallied::shared_bytes(in.at_work), bytes = tally_bytes + Walk::shared_bytes(in.sources.planes);
  each_query_tile(in, bytes, [&](const auto& setup, unsigned char* shared, int64_t tile, int64_t end) {
    Tallied tally(shared, in.at_work, out.weight, out.node_weight);
    Walk(in, setup, shared + tally_bytes).run(tile, end, tally);
    if (tile + lane_index() >= end) return;
    int64_t first = in.output_row(tile + lane_index()) * in.m + in.first_ball;
    int32_t count = 0;
    double sum = 0;
    for (int ball = 0; ball < in.at_work; ++ball) {
      out.count[first + ball] = count += tally.count[Tallied::place(ball)];
      if (Weighted) out.sum[first + ball] = static_cast<T>(sum += tally.sum[Tallied::place(ball)]);
    }
  });
}

template <int D, typename T, bool Weighted>
void count_all(Queue& queue, const CountWithin<D, T>& in) {
  BallProblem<D, T> problem = set_up(queue, in.sources, in.queries, in.queries.rows, in.radius, in.m(), in.box);
  Totals<T> totals{in.weight.data, Weighted ? join_nodes<AddedWeights>(queue, in.sources, in.weight.data) : nullptr,
                   in.count.data, in.sum.data};
  queue.fill_bytes(in.count.data, 0, in.q() * in.m());
  if (Weighted) queue.fill_bytes(in.sum.data, 0, in.q() * in.m());
  for (; problem.first_ball < in.m(); problem.first_ball += most_balls) {
    problem.at_work = static_cast<int>(std::min<int64_t>(most_balls, in.m() - problem.first_ball));
    using Tallied = Tally<T, Weighted>;
    int bytes = Tallied::shared_bytes(problem.at_work) + BallWalk<D, T, Tallied>::shared_bytes(problem.sources.planes);
    launch_tiles(queue, problem, bytes, tally_balls<D, T, Weighted>, totals);
  }
}

template <int D, typename T>
void count_within(Queue& queue, const CountWithin<D, T>& in) {
  if (in.weighted()) {
    count_all<D, T, true>(queue, in);
  } else {
    count_all<D, T, false>(queue, in);
  }
}

}  // namespace

JZTREE_KERNEL(count_within, CountWithin);

}  // namespace jztree
