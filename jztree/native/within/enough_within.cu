// One lane per query, and a walk outwards (ball_walk.cuh) that ends when all queries of a warp are decided.

#include <cstdint>

#include "ball_walk.cuh"
#include "common/cuda/context.cuh"
#include "enough_within.h"
#include "query_tiles.cuh"

namespace jztree {
namespace {

// Counts the sources of the lane's query, until there are enough.
struct TallyUpTo {
  bool used;
  int64_t required;   // number of sources that the query needs in addition to the common ones
  int64_t remaining;  // an upper limit of the number still to be found
  int64_t count = 0;
  bool decided = false;  // whether all queries are decided

  __device__ TallyUpTo(bool lane_used, int64_t min_count, int64_t rows)
      : used(lane_used), required(min_count), remaining(rows) {}

  __device__ bool needs(uint32_t) const { return true; }
  __device__ void nodes(uint32_t, uint32_t whole, uint32_t out) {
    const auto all_whole = warp_sum<int64_t>(whole);
    required -= all_whole;
    remaining -= all_whole + warp_sum<int64_t>(out);
    settle();
  }
  __device__ bool asks(uint32_t) const { return count < required && count + remaining >= required; }
  __device__ void row(uint32_t, int) { ++count; }
  __device__ void leaf_done(uint32_t rows) {
    remaining -= rows;
    settle();
  }
  __device__ bool done() const { return decided; }
  __device__ bool enough() const { return count >= required; }

 private:
  __device__ void settle() { decided = !__any_sync(all_lanes, used && asks(0)); }
};

template <int D, typename T>
__global__ void find_enough(const __grid_constant__ BallProblem<D, T> in, int64_t min_count, int32_t* enough) {
  using Walk = BallWalk<D, T, TallyUpTo>;
  each_query_tile(in, Walk::shared_bytes(in.sources.planes),
                  [&](const auto& setup, unsigned char* shared, int64_t tile, int64_t end) {
                    const int64_t query = tile + lane_index();
                    TallyUpTo tally(query < end, min_count, in.sources.num());
                    Walk(in, setup, shared).run_outwards(tile, end, tally);
                    if (query < end) enough[query] = tally.enough();
                  });
}

template <int D, typename T>
void enough_within(Queue& queue, const EnoughWithin<D, T>& in) {
  BallProblem<D, T> problem = set_up(queue, in.sources, in.queries, nullptr, in.radius, 1, in.box);
  problem.at_work = 1;
  queue.fill_bytes(in.enough, 0, in.q());
  launch_tiles(queue, problem, BallWalk<D, T, TallyUpTo>::shared_bytes(problem.sources.planes), find_enough<D, T>,
               in.min_count, in.enough);
}

}  // namespace

JZTREE_KERNEL(enough_within, EnoughWithin);

}  // namespace jztree
