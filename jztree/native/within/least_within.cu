// One lane per query, and a walk outwards (ball_walk.cuh). When every query of a warp has a value, the walk skips nodes
// without a smaller value.

#include <cstdint>
#include <limits>

#include "ball_walk.cuh"
#include "common/cuda/context.cuh"
#include "least_within.h"
#include "node_values.cuh"
#include "query_tiles.cuh"

namespace jztree {
namespace {

struct SmallestValue {
  using Joined = int32_t;

  template <typename Parts>
  __device__ int32_t operator()(const Parts& parts, int64_t begin, int64_t end) const {
    int32_t minimum = std::numeric_limits<int32_t>::max();
    for (int64_t i = begin; i < end; ++i) minimum = parts[i] < minimum ? parts[i] : minimum;
    return minimum;
  }
};

struct LeastOfLane {
  static constexpr int32_t none = std::numeric_limits<int32_t>::max();

  const int32_t *value, *of_nodes;
  bool used;
  int32_t minimum = none, largest = none;  // largest: over all lanes

  __device__ LeastOfLane(const int32_t* values, const int32_t* values_of_nodes, bool lane_used)
      : value(values), of_nodes(values_of_nodes), used(lane_used) {}

  __device__ bool needs(uint32_t node) const { return of_nodes[node] < largest; }
  __device__ void nodes(uint32_t node, uint32_t whole, uint32_t) {
    take(warp_min(whole > 0 ? of_nodes[node] : none));
    settle();
  }
  __device__ bool asks(uint32_t leaf) const { return of_nodes[leaf] < minimum; }
  __device__ void row(uint32_t row, int) { take(value[row]); }
  __device__ void leaf_done(uint32_t) { settle(); }
  __device__ bool done() const { return false; }

 private:
  __device__ void take(int32_t candidate) { minimum = candidate < minimum ? candidate : minimum; }
  __device__ void settle() { largest = warp_max(used ? minimum : std::numeric_limits<int32_t>::min()); }
};

template <int D, typename T>
__global__ void find_least(const __grid_constant__ BallProblem<D, T> in, const int32_t* value, const int32_t* of_nodes,
                           int32_t* minima) {
  using Walk = BallWalk<D, T, LeastOfLane>;
  each_query_tile(in, Walk::shared_bytes(in.sources.planes),
                  [&](const auto& setup, unsigned char* shared, int64_t tile, int64_t end) {
                    const int64_t query = tile + lane_index();
                    LeastOfLane visit(value, of_nodes, query < end);
                    Walk(in, setup, shared).run_outwards(tile, end, visit);
                    if (query < end) minima[in.output_row(query)] = visit.minimum;
                  });
}

// The value of queries from num on.
template <int D, typename T>
__global__ void clear_least(const __grid_constant__ BallProblem<D, T> in, int32_t* minima) {
  int64_t query = thread_index();
  if (query >= in.queries.num() && query < in.queries.num.rows) minima[in.output_row(query)] = LeastWithin<D, T>::none;
}

template <int D, typename T>
void least_within(Queue& queue, const LeastWithin<D, T>& in) {
  BallProblem<D, T> problem = set_up(queue, in.sources, in.queries, in.queries.rows, in.radius, 1, in.box);
  problem.at_work = 1;
  const int32_t* of_nodes = join_nodes<SmallestValue>(queue, in.sources, in.value);
  launch_tiles(queue, problem, BallWalk<D, T, LeastOfLane>::shared_bytes(problem.sources.planes), find_least<D, T>,
               in.value, of_nodes, in.minima);
  queue.launch_over(in.q(), clear_least<D, T>, problem, in.minima);
}

}  // namespace

JZTREE_KERNEL(least_within, LeastWithin);

}  // namespace jztree
