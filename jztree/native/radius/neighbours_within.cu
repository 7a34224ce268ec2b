// Two walks (ball_walk.cuh): the first counts the neighbours of every query, which tells where each list begins; the
// second writes them. Each lane writes the list of its query. To sort, a warp takes a list and goes over it in place,
// by a bitonic sort all of whose steps ascend, so that any length will do (Batcher 1968). Lists hold rows of the
// z-order until then, which decide between equal distances.

#include <cstdint>
#include <limits>

#include "ball_walk.cuh"
#include "common/cuda/context.cuh"
#include "common/cuda/primitives.cuh"
#include "neighbours_within.h"

namespace jztree {
namespace {

constexpr int list_threads = 64;
constexpr int list_warps = list_threads / warp_size;

template <typename T>
struct ListArrays {
  int64_t* starts;             // (q + 1,), of output rows; at first, how long each list is
  const int32_t* source_rows;  // null: their place
  int32_t* index;
  T* distance;
  int64_t room, q;

  __device__ int64_t total() const { return starts[q]; }
};

struct ListCounter {
  static constexpr bool together = true;
  int64_t number;

  __device__ void node(int64_t, uint32_t rows, int) { number += rows; }
  __device__ void row(uint32_t, int) { ++number; }
};

template <int D, typename T>
struct ListWriter {
  static constexpr bool together = false;
  const ListArrays<T>& out;
  const BallProblem<D, T>& in;
  const BallSetup<D, T>& setup;
  int64_t query, place;

  __device__ void row(uint32_t row, int) {
    const T *a = in.queries.pos + query * D, *b = in.sources.pos + static_cast<int64_t>(row) * D;
    out.index[place] = static_cast<int32_t>(row);
    out.distance[place++] = length_of<T>(setup.rule.distance2(a, b), setup.rule.factor);
  }
};

// work(walk, tile, end): for each group of queries, by the warp that it belongs to.
template <int D, typename T, typename Visit, typename Work>
__device__ void each_group(const BallProblem<D, T>& in, const BallSetup<D, T>& setup, const Work& work) {
  using Walk = BallWalk<D, T, Visit>;
  int64_t leaf = thread_index() / warp_size;
  if (leaf >= in.queries.leaves()) return;
  Walk walk(in, setup,
            dynamic_shared() + static_cast<int>(threadIdx.x) / warp_size * Walk::shared_bytes(in.sources.planes));
  int64_t end = in.queries.leaf_row(leaf + 1);
  for (int64_t tile = in.queries.leaf_row(leaf); tile < end; tile += warp_size) work(walk, tile, end);
}

template <int D, typename T>
__global__ void count_lists(const __grid_constant__ BallProblem<D, T> in, const __grid_constant__ ListArrays<T> out) {
  alignas(16) __shared__ unsigned char memory[sizeof(BallSetup<D, T>)];
  const BallSetup<D, T>& setup = share_setup(in.setup, memory);
  each_group<D, T, ListCounter>(in, setup, [&](auto& walk, int64_t tile, int64_t end) {
    ListCounter counter{0};
    walk.run(tile, end, counter);
    int64_t query = tile + lane_index();
    if (query < end) out.starts[in.output_row(query)] = counter.number;
  });
}

template <int D, typename T>
__global__ void write_lists(const __grid_constant__ BallProblem<D, T> in, const __grid_constant__ ListArrays<T> out) {
  alignas(16) __shared__ unsigned char memory[sizeof(BallSetup<D, T>)];
  const BallSetup<D, T>& setup = share_setup(in.setup, memory);
  if (out.total() > out.room) return;
  each_group<D, T, ListWriter<D, T>>(in, setup, [&](auto& walk, int64_t tile, int64_t end) {
    int64_t query = tile + lane_index();
    ListWriter<D, T> writer{out, in, setup, query, query < end ? out.starts[in.output_row(query)] : 0};
    walk.run(tile, end, writer);
  });
}

// total: upper and lower 31 bits.
template <typename T>
__global__ void write_splits(ListArrays<T> out, int32_t* splits, int32_t* total) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  int64_t row = thread_index();
  if (row > out.q) return;
  splits[row] = static_cast<int32_t>(out.starts[row] < most ? out.starts[row] : most);
  if (row < out.q) return;
  total[0] = static_cast<int32_t>(out.total() >> 31);
  total[1] = static_cast<int32_t>(out.total() & most);
}

// Whether the entry at i comes behind that at j.
template <typename T>
__device__ bool comes_behind(const ListArrays<T>& out, int64_t i, int64_t j) {
  return out.distance[i] > out.distance[j] || (out.distance[i] == out.distance[j] && out.index[i] > out.index[j]);
}

template <typename T>
__device__ void put_in_order(const ListArrays<T>& out, int64_t first, int64_t count, int64_t i, int64_t j) {
  if (i >= j || j >= count || !comes_behind(out, first + i, first + j)) return;
  T distance = out.distance[first + i];
  int32_t row = out.index[first + i];
  out.distance[first + i] = out.distance[first + j];
  out.index[first + i] = out.index[first + j];
  out.distance[first + j] = distance;
  out.index[first + j] = row;
}

// A warp a list.
template <typename T>
__global__ void sort_lists(ListArrays<T> out) {
  int64_t row = thread_index() / warp_size;
  if (row >= out.q || out.total() > out.room) return;
  int64_t first = out.starts[row], count = out.starts[row + 1] - first;
  for (int64_t run = 2; run < 2 * count; run *= 2) {
    // Two sorted runs, the second seen from its end, then ever closer pairs.
    for (int64_t apart = run; apart > 1; apart /= 2) {
      int64_t flip = apart == run ? run - 1 : apart / 2;
      __syncwarp();
      for (int64_t i = lane_index(); i < count; i += warp_size) put_in_order(out, first, count, i, i ^ flip);
    }
  }
}

template <typename T>
__global__ void name_entries(ListArrays<T> out) {
  int64_t entry = thread_index();
  if (entry >= out.room) return;
  if (out.total() > out.room || entry >= out.total()) {
    out.index[entry] = -1;
    out.distance[entry] = std::numeric_limits<T>::infinity();
  } else if (out.source_rows) {
    out.index[entry] = out.source_rows[out.index[entry]];
  }
}

template <int D, typename T>
void neighbours_within(Queue& queue, const NeighboursWithin<D, T>& in) {
  BallProblem<D, T> problem = set_up(queue, in.sources, in.queries, in.query_rows, in.radius, 1, in.box);
  problem.at_work = 1;
  ListArrays<T> lists{queue.scratch<int64_t>(in.q() + 1), in.source_rows, in.index, in.distance, in.room(), in.q()};
  int64_t blocks = (problem.queries.leaves() + list_warps - 1) / list_warps;
  auto shared = [&](int bytes) { return static_cast<size_t>(list_warps * bytes); };
  int planes = problem.sources.planes;
  queue.fill_bytes(lists.starts, 0, in.q() + 1);
  queue.launch(blocks, list_threads, shared(BallWalk<D, T, ListCounter>::shared_bytes(planes)), count_lists<D, T>,
               problem, lists);
  exclusive_sum(queue, lists.starts, lists.starts, in.q() + 1);
  queue.launch_over(in.q() + 1, write_splits<T>, lists, in.splits, in.total);
  queue.launch(blocks, list_threads, shared(BallWalk<D, T, ListWriter<D, T>>::shared_bytes(planes)), write_lists<D, T>,
               problem, lists);
  if (in.sorted) queue.launch_warps(in.q(), sort_lists<T>, lists);
  queue.launch_over(in.room(), name_entries<T>, lists);
}

}  // namespace

JZTREE_KERNEL(neighbours_within, NeighboursWithin);

}  // namespace jztree
