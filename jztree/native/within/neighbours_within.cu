// Two walks (ball_walk.cuh): the first counts the neighbours of every query, which gives the start of each list; the
// second writes them. Each lane writes the list of its query. A warp sorts a list, by a bitonic sort whose steps all
// ascend, so that any length is possible (Batcher 1968): in registers if it has at most 64 entries, in place otherwise.
// During the sort, lists hold z-ordered rows, which decide between equal distances.

#include <cstdint>
#include <limits>

#include "ball_walk.cuh"
#include "common/cuda/context.cuh"
#include "list_starts.cuh"
#include "neighbours_within.h"
#include "query_tiles.cuh"

namespace jztree {
namespace {

template <typename T>
struct ListArrays : ListStarts {
  const int32_t* source_rows;  // null: their index
  int32_t* index;
  T* distance;
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
    out.distance[place++] = setup.rule.length(setup.rule.distance2(a, b));
  }
};

template <int D, typename T>
__global__ void count_lists(const __grid_constant__ BallProblem<D, T> in, ListStarts out) {
  using Walk = BallWalk<D, T, ListCounter>;
  each_query_tile(in, Walk::shared_bytes(in.sources.planes),
                  [&](const auto& setup, unsigned char* shared, int64_t tile, int64_t end) {
                    ListCounter counter{0};
                    Walk(in, setup, shared).run(tile, end, counter);
                    int64_t query = tile + lane_index();
                    if (query < end) out.starts[in.output_row(query)] = counter.number;
                  });
}

template <int D, typename T>
__global__ void write_lists(const __grid_constant__ BallProblem<D, T> in, const __grid_constant__ ListArrays<T> out) {
  using Walk = BallWalk<D, T, ListWriter<D, T>>;
  if (!out.fit()) return;
  each_query_tile(in, Walk::shared_bytes(in.sources.planes),
                  [&](const auto& setup, unsigned char* shared, int64_t tile, int64_t end) {
                    int64_t query = tile + lane_index();
                    int64_t place = query < end ? out.starts[in.output_row(query)] : 0;
                    ListWriter<D, T> writer{out, in, setup, query, place};
                    Walk(in, setup, shared).run(tile, end, writer);
                  });
}

template <typename T>
__device__ bool comes_behind(T distance, int32_t row, T other_distance, int32_t other_row) {
  return distance > other_distance || (distance == other_distance && row > other_row);
}

// Call step(flip) for each step of the sort of `count` entries, which compares entry i with entry i ^ flip: merge two
// sorted runs, reading the second from its end; then compare pairs at ever smaller separations.
template <typename Step>
__device__ void each_sort_step(int64_t count, const Step& step) {
  for (int64_t run = 2; run < 2 * count; run *= 2)
    for (int64_t separation = run; separation > 1; separation /= 2) step(separation == run ? run - 1 : separation / 2);
}

// Sort a list of up to 32 N entries: lane i has the entries i, i + 32, ...
template <int N, typename T>
__device__ void sort_in_registers(const ListArrays<T>& out, int64_t first, int count) {
  T distance[N];
  int32_t row[N];
  for (int j = 0; j < N; ++j) {
    const int entry = lane_index() + j * warp_size;
    distance[j] = entry < count ? out.distance[first + entry] : std::numeric_limits<T>::infinity();
    row[j] = entry < count ? out.index[first + entry] : std::numeric_limits<int32_t>::max();
  }
  each_sort_step(count, [&](int64_t step) {
    const int flip = static_cast<int>(step), lane_flip = flip % warp_size;
    T other_distance[N];
    int32_t other_row[N];
    for (int j = 0; j < N; ++j) {
      const bool across = flip >= warp_size;
      other_distance[j] = __shfl_xor_sync(all_lanes, across ? distance[N - 1 - j] : distance[j], lane_flip);
      other_row[j] = __shfl_xor_sync(all_lanes, across ? row[N - 1 - j] : row[j], lane_flip);
    }
    for (int j = 0; j < N; ++j) {
      const int entry = lane_index() + j * warp_size;
      const bool is_behind = comes_behind(distance[j], row[j], other_distance[j], other_row[j]);
      if (is_behind != (entry < (entry ^ flip))) continue;
      distance[j] = other_distance[j];
      row[j] = other_row[j];
    }
  });
  for (int j = 0; j < N; ++j) {
    const int entry = lane_index() + j * warp_size;
    if (entry >= count) continue;
    out.distance[first + entry] = distance[j];
    out.index[first + entry] = row[j];
  }
}

template <typename T>
__device__ void put_in_order(const ListArrays<T>& out, int64_t i, int64_t j) {
  const T distance = out.distance[i], other_distance = out.distance[j];
  const int32_t row = out.index[i], other_row = out.index[j];
  if (!comes_behind(distance, row, other_distance, other_row)) return;
  out.distance[i] = other_distance;
  out.index[i] = other_row;
  out.distance[j] = distance;
  out.index[j] = row;
}

// One step of the sort of a long list.
template <typename T>
__device__ void sort_in_memory(const ListArrays<T>& out, int64_t first, int64_t count, int64_t flip) {
  __syncwarp();
  for (int64_t i = lane_index(); i < count; i += warp_size)
    if (i < (i ^ flip) && (i ^ flip) < count) put_in_order(out, first + i, first + (i ^ flip));
}

// One warp per list.
template <typename T>
__global__ void sort_lists(ListArrays<T> out) {
  int64_t list = thread_index() / warp_size;
  if (list >= out.q || !out.fit()) return;
  int64_t first = out.starts[list], count = out.starts[list + 1] - first;
  if (count <= warp_size) return sort_in_registers<1>(out, first, static_cast<int>(count));
  if (count <= 2 * warp_size) return sort_in_registers<2>(out, first, static_cast<int>(count));
  each_sort_step(count, [&](int64_t flip) { sort_in_memory(out, first, count, flip); });
}

template <typename T>
__global__ void name_entries(ListArrays<T> out, bool padded) {
  int64_t entry = thread_index();
  if (entry >= out.room) return;
  if (!out.fit() || entry >= out.total()) {
    if (!padded) return;
    out.index[entry] = -1;
    out.distance[entry] = std::numeric_limits<T>::infinity();
  } else if (out.source_rows) {
    out.index[entry] = out.source_rows[out.index[entry]];
  }
}

template <int D, typename T>
void neighbours_within(Queue& queue, const NeighboursWithin<D, T>& in) {
  BallProblem<D, T> problem = set_up(queue, in.sources, in.queries, in.queries.rows, in.radius, 1, in.box);
  problem.at_work = 1;
  int planes = problem.sources.planes;
  ListStarts starts = lay_out_lists(queue, in, [&](const ListStarts& out) {
    launch_tiles(queue, problem, BallWalk<D, T, ListCounter>::shared_bytes(planes), count_lists<D, T>, out);
  });
  ListArrays<T> lists{starts, in.sources.rows, in.index, in.distance};
  launch_tiles(queue, problem, BallWalk<D, T, ListWriter<D, T>>::shared_bytes(planes), write_lists<D, T>, lists);
  if (in.sorted) queue.launch_warps(in.q(), sort_lists<T>, lists);
  queue.launch_over(in.room(), name_entries<T>, lists, in.padded);
}

}  // namespace

JZTREE_KERNEL(neighbours_within, NeighboursWithin);

}  // namespace jztree
