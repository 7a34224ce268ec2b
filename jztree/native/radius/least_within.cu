// A lane a query, and a walk (ball_walk.cuh) that looks at every pair within the radius.

#include <cstdint>

#include "ball_walk.cuh"
#include "common/cuda/context.cuh"
#include "least_within.h"
#include "query_tiles.cuh"

namespace jztree {
namespace {

struct LeastOfLane {
  static constexpr bool together = false;
  const int32_t* value;
  int32_t least;

  __device__ void row(uint32_t row, int) { least = value[row] < least ? value[row] : least; }
};

template <int D, typename T>
__global__ void find_least(const __grid_constant__ BallProblem<D, T> in, const int32_t* value, int32_t* least) {
  using Walk = BallWalk<D, T, LeastOfLane>;
  each_query_tile(in, Walk::shared_bytes(in.sources.planes),
                  [&](const auto& setup, unsigned char* shared, int64_t tile, int64_t end) {
                    LeastOfLane visit{value, LeastWithin<D, T>::none};
                    Walk(in, setup, shared).run(tile, end, visit);
                    if (tile + lane_index() < end) least[in.output_row(tile + lane_index())] = visit.least;
                  });
}

// What queries from num on have.
template <int D, typename T>
__global__ void clear_least(const __grid_constant__ BallProblem<D, T> in, int32_t* least) {
  int64_t query = thread_index();
  if (query >= in.queries.num() && query < in.queries.num.rows) least[in.output_row(query)] = LeastWithin<D, T>::none;
}

template <int D, typename T>
void least_within(Queue& queue, const LeastWithin<D, T>& in) {
  BallProblem<D, T> problem = set_up(queue, in.sources, in.queries, in.query_rows, in.radius, 1, in.box);
  problem.at_work = 1;
  launch_tiles(queue, problem.queries.leaves(), BallWalk<D, T, LeastOfLane>::shared_bytes(problem.sources.planes),
               find_least<D, T>, problem, in.value, in.least);
  queue.launch_over(in.q(), clear_least<D, T>, problem, in.least);
}

}  // namespace

JZTREE_KERNEL(least_within, LeastWithin);

}  // namespace jztree
