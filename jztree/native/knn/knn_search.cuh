// One search, from the scale of its distances to the queries that must be answered again in float64.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/cuda/query_groups.cuh"
#include "common/kernel.h"
#include "knn_long.cuh"
#include "knn_problem.cuh"
#include "knn_report.cuh"
#include "knn_short.cuh"

namespace jztree {

// The box and, if sources and queries are part of a wider set, its corners (2, dims).
template <typename From>
struct Extent {
  Lengths box;
  const From* corners;
};

template <int W, typename From, typename T>
__global__ void make_scale(const __grid_constant__ Problem<From> problem, Extent<From> extent, Scale<W, T>* scale) {
  int dims = problem.sources.dims;
  double box[W] = {};
  OpenSpan span;
  for (int d = 0; d < dims; ++d) {
    box[d] = extent.box[d];
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (const TreeView<From>* tree : {&problem.sources, &problem.queries}) top_extent(*tree, d, &low, &high);
    if (box[d] > 0) continue;
    span.include(low, high);
    if (extent.corners)
      span.include(static_cast<double>(extent.corners[d]), static_cast<double>(extent.corners[dims + d]));
  }
  if (lane_index() == 0) *scale = Scale<W, T>(box, span.template for_scale<T>());
}

template <int W, typename T, typename From>
const Scale<W, T>* device_scale(Queue& queue, const Problem<From>& problem, const Extent<From>& extent) {
  auto* scale = queue.scratch<Scale<W, T>>(1);
  queue.launch(1, warp_size, 0, make_scale<W, From, T>, problem, extent, scale);
  return scale;
}

inline Unanswered no_unanswered(Queue& queue, int64_t capacity) {
  Unanswered none{queue.scratch<int32_t>(1), queue.scratch<uint32_t>(capacity), queue.scratch<uint32_t>(capacity)};
  queue.fill_bytes(none.count, 0, 1);
  return none;
}

// The planes at which walks stop on their way down, one bit per plane. The number of stops is such that a node has
// about as many nodes of the next stop as a warp has lanes, or twice as many. Walks that start with a bound test the
// highest stop whole, so this is the top plane.
template <typename T>
uint32_t walk_stops(const TreeView<T>& tree) {
  uint32_t stops = 1u | 1u << (tree.planes - 1);
  for (int plane = 1, last = 0; plane + 1 < tree.planes; ++plane) {
    auto size = [&](int p) { return tree.starts[p + 1] - tree.starts[p]; };
    if (size(last) <= 2 * warp_size * size(plane + 1)) continue;
    stops |= 1u << plane;
    last = plane;
  }
  return stops;
}

// The largest k of repeated searches. They take more time per neighbour as k grows.
constexpr int64_t most_repeated = 128;

// The warps that answer queries again. They are few in most sets.
constexpr int64_t most_warps_again = 4096;

template <int W, typename T>
const StagedRow<W, T>* staged_rows(Queue& queue, const Problem<T>& problem, const Scale<W, T>* scale) {
  auto* rows = queue.scratch<StagedRow<W, T>>(problem.sources.num.rows);
  queue.launch_over(problem.sources.num.rows, stage_rows<W, T, T>, problem, scale, rows);
  return rows;
}

// again: see search_short.
template <int W, int K, bool Repeated, bool Keyed, typename T>
Unanswered search_short_lists(Queue& queue, const Problem<T>& problem, const StagedRow<W, T>* rows,
                              const Scale<W, T>* scale, const Limits<W, T>& limits, const Unanswered& again) {
  int64_t groups = warps_of_queries(problem.max_queries, (problem.max_queries + warp_size - 1) / warp_size);
  Unanswered unanswered = no_unanswered(queue, groups);
  int64_t bytes = short_search_bytes<W, ShortList<K, T, Keyed>, T>(problem.sources.planes);
  queue.launch_warps(again.count ? std::min(groups, most_warps_again) : groups, bytes, short_search_threads,
                     search_short<W, K, T, T, Repeated, Keyed>, problem, rows, scale, limits, bytes,
                     walk_stops(problem.sources), again, unanswered);
  return unanswered;
}

// Lists sorted by keys of 32 bits answer nearly all queries of most sets. For the others, and in float64, whole
// candidates are sorted.
template <int W, int K, bool Repeated = false, typename T>
Unanswered search_short_lists(Queue& queue, const Problem<T>& problem, const Scale<W, T>* scale) {
  const StagedRow<W, T>* rows = staged_rows(queue, problem, scale);
  const Limits<W, T> limits = limits_on_device<T, W, T>(queue, problem.limit, scale);
  // In many dimensions, long lists hold rows of too many leaves.
  constexpr bool is_keyed = std::is_same<T, float>::value && W < max_dims && !Repeated && K > 4 && (W <= 3 || K <= 16);
  if constexpr (!is_keyed)
    return search_short_lists<W, K, Repeated, false>(queue, problem, rows, scale, limits, {});
  else {
    const Unanswered again = search_short_lists<W, K, false, true>(queue, problem, rows, scale, limits, {});
    return search_short_lists < W, K<32 ? K : 32, (K > 32), false>(queue, problem, rows, scale, limits, again);
  }
}

// again: see search_long.
template <int W, typename T, typename From>
Unanswered search_long_lists(Queue& queue, const Problem<From>& problem, const Scale<W, T>* scale,
                             const Unanswered& again) {
  // Lists above `shared_list_bytes` are in global memory. The lists of the concurrent warps take at most `global_bytes`
  // together. Few queries, if any, are answered again.
  constexpr int64_t shared_list_bytes = 16 << 10, global_bytes = int64_t{1} << 30;
  const int64_t most_warps = again.count ? 256 : 4096;
  Unanswered unanswered = no_unanswered(queue, again.count ? 1 : problem.max_queries);
  int64_t list_bytes = problem.k * static_cast<int64_t>(sizeof(Candidate<T>));
  int64_t bytes = long_search_bytes<T>(problem.sources.planes), queries = problem.max_queries;
  Candidate<T>* lists = nullptr;
  if (list_bytes <= shared_list_bytes) {
    bytes += (list_bytes + 15) / 16 * 16;
    if (again.count) queries = std::min(queries, most_warps);
  } else {
    queries = std::min({queries, most_warps, std::max<int64_t>(1, global_bytes / list_bytes)});
  }
  int threads = Queue::block_threads(bytes, long_search_threads), warps = threads / warp_size;
  int64_t blocks = (queries + warps - 1) / warps;
  if (list_bytes > shared_list_bytes) lists = queue.scratch<Candidate<T>>(blocks * warps * problem.k);
  queue.launch(blocks, threads, static_cast<size_t>(warps * bytes), search_long<W, From, T>, problem, scale,
               limits_on_device<From, W, T>(queue, problem.limit, scale), bytes, lists, again, unanswered);
  return unanswered;
}

template <int W, typename T>
Unanswered search_lists(Queue& queue, const Problem<T>& problem, const Scale<W, T>* scale) {
  if constexpr (W < max_dims)
    if (problem.k <= 4) return search_short_lists<W, 4>(queue, problem, scale);
  if (problem.k <= 8) return search_short_lists<W, 8>(queue, problem, scale);
  if (problem.k <= 16) return search_short_lists<W, 16>(queue, problem, scale);
  if constexpr (W < max_dims)
    if (problem.k <= 32) return search_short_lists<W, 32>(queue, problem, scale);
  if constexpr (W <= 3 && std::is_same<T, float>::value)
    if (problem.k <= 64) return search_short_lists<W, 64>(queue, problem, scale);
  if (problem.k <= most_repeated) return search_short_lists<W, 32, true>(queue, problem, scale);
  return search_long_lists<W, T>(queue, problem, scale, Unanswered{});
}

template <int W, typename T>
void search_padded(Queue& queue, const Problem<T>& problem, const Extent<T>& extent) {
  const Scale<W, T>* scale = device_scale<W, T>(queue, problem, extent);
  Unanswered unanswered = search_lists<W, T>(queue, problem, scale);
  if constexpr (std::is_same<T, float>::value)
    search_long_lists<W, double>(queue, problem, device_scale<W, double>(queue, problem, extent), unanswered);
  queue.launch_warps((problem.max_queries + warp_size - 1) / warp_size, report<W, T>, problem, scale);
}

template <typename T>
void search(Queue& queue, const Problem<T>& problem, const Extent<T>& extent) {
  const int dims = problem.sources.dims;
  if (dims <= 2) return search_padded<2>(queue, problem, extent);
  // knn.cu has no calls with the other dimensions, so their searches are not compiled.
  if constexpr ((JZTREE_DIMS) >> 3 & 1)
    if (dims == 3) return search_padded<3>(queue, problem, extent);
  if constexpr ((JZTREE_DIMS) >> 4 & 7)
    if (dims <= 6) return search_padded<6>(queue, problem, extent);
  if constexpr ((JZTREE_DIMS) >> 7) search_padded<max_dims>(queue, problem, extent);
}

// Compiled separately, because it takes longest.
extern template void search(Queue&, const Problem<float>&, const Extent<float>&);
extern template void search(Queue&, const Problem<double>&, const Extent<double>&);

}  // namespace jztree
