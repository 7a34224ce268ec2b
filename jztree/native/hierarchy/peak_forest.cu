// Rounds as on the CPU (peak_forest.cc), then a radix sort of the edges. The host does not know when the forest is
// complete. So it launches as many rounds as any graph may need, and the rounds after the last edge return at once.

#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/loads.cuh"
#include "common/cuda/primitives.cuh"
#include "fof/union_find.cuh"
#include "peak_forest.h"

namespace jztree {
namespace {

struct DevicePeaks {
  RankedGraph graph;
  const int32_t* peak;
  UnionFind joined;  // of rows that represent peaks
  int32_t* row_of;   // [rank]
  int32_t* set;      // [row], the root of the set of its peak
  uint64_t* first;   // [root], the first edge to another set
  uint64_t* edges;
  int32_t* count;  // of edges
  int32_t* added;  // [round], the number of edges before the round

  // Whether a round before this one found no edge.
  __device__ bool is_done(int round) const { return round > 0 && added[round] == added[round - 1]; }
};

__global__ void begin_rows(DevicePeaks peaks) {
  const int64_t row = thread_index();
  if (row == 0) *peaks.count = 0;
  if (row >= peaks.graph.num()) return;
  const int32_t rank = peaks.graph.rank[row];
  peaks.joined.set(row, row);
  if (rank >= 0 && rank < peaks.graph.num()) peaks.row_of[rank] = static_cast<int32_t>(row);
}

__global__ void begin_round(DevicePeaks peaks, int round) {
  const int64_t row = thread_index();
  if (row == 0) peaks.added[round] = *peaks.count;
  if (row >= peaks.graph.num() || (round > 0 && peaks.is_done(round - 1))) return;
  peaks.set[row] = peaks.joined.find(peaks.peak[row]);
  peaks.first[row] = no_edge;
}

__global__ void offer_edges(DevicePeaks peaks, int round) {
  const int64_t row = thread_index();
  if (row >= peaks.graph.num() || peaks.is_done(round)) return;
  const int32_t row_rank = peaks.graph.rank[row], set = peaks.set[row];
  uint64_t first = no_edge;
  peaks.graph.each_near(row, [&](int32_t neighbour) {
    if (peaks.set[neighbour] == set) return;
    const uint64_t edge = edge_between(row_rank, peaks.graph.rank[neighbour]);
    first = edge < first ? edge : first;
    lower(peaks.first + peaks.set[neighbour], edge);
  });
  if (first != no_edge) lower(peaks.first + set, first);
}

// If two sets have the same first edge, one of them adds it.
__global__ void join_sets(DevicePeaks peaks, int round) {
  const int64_t set = thread_index();
  if (set >= peaks.graph.num() || peaks.is_done(round)) return;
  const uint64_t edge = peaks.first[set];
  if (edge == no_edge) return;
  const int32_t a = peaks.set[peaks.row_of[sparser_end(edge)]], b = peaks.set[peaks.row_of[denser_end(edge)]];
  const int32_t partner = a == set ? b : a;
  if (peaks.first[partner] == edge && partner < set) return;
  peaks.edges[atomicAdd(peaks.count, 1)] = edge;
  peaks.joined.unite(static_cast<int32_t>(set), partner);
}

// Fill the places after the last edge, so that the sort moves them past all edges.
__global__ void fill_edges(DevicePeaks peaks, int64_t edges) {
  const int64_t place = thread_index();
  if (place < edges && place >= *peaks.count) peaks.edges[place] = no_edge;
}

__global__ void write_ends(const uint64_t* edge, const int32_t* count, int64_t edges, int32_t* ends) {
  const int64_t place = thread_index();
  if (place >= edges) return;
  ends[2 * place] = place < *count ? sparser_end(edge[place]) : -1;
  ends[2 * place + 1] = place < *count ? denser_end(edge[place]) : -1;
}

void sort_edges(Queue& queue, const DevicePeaks& peaks, const PeakForest& in) {
  const int64_t edges = in.edges();
  if (edges == 0) return;
  queue.launch_over(edges, fill_edges, peaks, edges);
  DoubleBuffer<uint64_t> keys{peaks.edges, queue.scratch<uint64_t>(edges)};
  // The sort moves these numbers too, but nothing reads them.
  DoubleBuffer<uint32_t> unused{queue.scratch<uint32_t>(edges), queue.scratch<uint32_t>(edges)};
  queue.fill_bytes(unused.current, 0, edges);
  sort_pairs(queue, keys, unused, edges);
  queue.launch_over(edges, write_ends, keys.current, in.count, edges, in.ends);
}

void peak_forest(Queue& queue, const PeakForest& in) {
  const int64_t n = in.graph.rows;
  const int rounds = bits_of(n);
  const DevicePeaks peaks{in.graph,
                          in.peak,
                          {queue.scratch<int32_t>(n)},
                          queue.scratch<int32_t>(n),
                          queue.scratch<int32_t>(n),
                          queue.scratch<uint64_t>(n),
                          queue.scratch<uint64_t>(n),
                          in.count,
                          queue.scratch<int32_t>(rounds)};
  queue.fill_bytes(in.count, 0, 1);
  queue.launch_over(n, begin_rows, peaks);
  // Each round at least halves the number of sets that have edges to others.
  for (int round = 0; round < rounds; ++round) {
    queue.launch_over(n, begin_round, peaks, round);
    queue.launch_over(n, offer_edges, peaks, round);
    queue.launch_over(n, join_sets, peaks, round);
  }
  sort_edges(queue, peaks, in);
}

}  // namespace

JZTREE_PLAIN_KERNEL(peak_forest, PeakForest);

}  // namespace jztree
