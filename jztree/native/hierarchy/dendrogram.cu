// Edges in order are cut into blocks, and each block into two halves. The edges of the first half form clusters. An
// edge of the second half that ends in such a cluster gets the number of its last edge as its end: this is the cluster
// that the edge joins, unless a later edge of the second half has joined that cluster before. Then both halves are
// blocks of half the size. After blocks of two edges, the ends of all edges are the clusters that they join.
//
// A cluster is an end of edges in only one of the blocks, so one union-find over the numbers of all clusters serves all
// blocks of a size. The work is O(n log n), without a sequential part.
//
// The number of rows of each cluster is summed from the rows up (merging.cuh).

#include <cstdint>

#include "common/cuda/context.cuh"
#include "dendrogram.h"
#include "fof/union_find.cuh"
#include "merging.cuh"

namespace jztree {
namespace {

struct DeviceClusters {
  const int32_t* ends;
  Count num;
  int64_t rows;
  UnionFind sets;     // of numbers of clusters
  int32_t* last;      // [cluster], the last edge of its set in the first half, or -1
  int32_t* children;  // [edge, 2]
  int32_t* count;     // [edge]
  int32_t* parent;    // [cluster], the edge that joins it to another, or -1
  int32_t* arrived;   // [edge], number of children

  __device__ int64_t clusters() const { return rows + num.rows; }
  __device__ bool is_valid(int64_t edge) const { return edge < num() && has_rows(ends, edge, rows); }
};

__global__ void begin_clusters(DeviceClusters all) {
  const int64_t edge = thread_index();
  if (edge >= all.num.rows) return;
  const bool valid = all.is_valid(edge);
  for (int i = 0; i < 2; ++i) all.children[2 * edge + i] = valid ? all.ends[2 * edge + i] : -1;
  all.count[edge] = 0;
  all.arrived[edge] = 0;
}

__global__ void begin_halves(DeviceClusters all) {
  const int64_t cluster = thread_index();
  if (cluster >= all.clusters()) return;
  all.sets.set(cluster, cluster);
  all.last[cluster] = -1;
}

__device__ bool in_first_half(int64_t edge, int64_t half) { return edge / half % 2 == 0; }

__global__ void join_first_halves(DeviceClusters all, int64_t half) {
  const int64_t edge = thread_index();
  if (all.is_valid(edge) && in_first_half(edge, half))
    all.sets.unite(all.children[2 * edge], all.children[2 * edge + 1]);
}

__global__ void find_last_edges(DeviceClusters all, int64_t half) {
  const int64_t edge = thread_index();
  if (all.is_valid(edge) && in_first_half(edge, half))
    atomicMax(all.last + all.sets.find(all.children[2 * edge]), static_cast<int32_t>(edge));
}

__global__ void move_ends(DeviceClusters all, int64_t half) {
  const int64_t edge = thread_index();
  if (!all.is_valid(edge) || in_first_half(edge, half)) return;
  for (int i = 0; i < 2; ++i) {
    int32_t& end = all.children[2 * edge + i];
    const int32_t last = all.last[all.sets.find(end)];
    if (last >= 0) end = static_cast<int32_t>(all.rows) + last;
  }
}

__global__ void find_parents(DeviceClusters all) {
  const int64_t edge = thread_index();
  if (!all.is_valid(edge)) return;
  for (int i = 0; i < 2; ++i) all.parent[all.children[2 * edge + i]] = static_cast<int32_t>(edge);
}

__global__ void count_rows(DeviceClusters all) {
  const int64_t row = thread_index();
  if (row >= all.rows) return;
  combine_upwards(all.parent, all.rows, row, 1, all.count, all.arrived,
                  [](int32_t* sum, int32_t count) { atomicAdd(sum, count); });
}

void dendrogram(Queue& queue, const TreeClusters& in) {
  const int64_t edges = in.ends.rows(), clusters = in.rows + edges;
  const DeviceClusters all{in.ends,
                           in.num,
                           in.rows,
                           {queue.scratch<int32_t>(clusters)},
                           queue.scratch<int32_t>(clusters),
                           in.children,
                           in.count,
                           queue.scratch<int32_t>(clusters),
                           queue.scratch<int32_t>(edges)};
  queue.launch_over(edges, begin_clusters, all);
  int64_t half = 1;
  while (2 * half < edges) half *= 2;
  for (; half > 0; half /= 2) {
    queue.launch_over(clusters, begin_halves, all);
    queue.launch_over(edges, join_first_halves, all, half);
    queue.launch_over(edges, find_last_edges, all, half);
    queue.launch_over(edges, move_ends, all, half);
  }
  queue.fill_bytes(all.parent, 0xff, clusters);
  queue.launch_over(edges, find_parents, all);
  queue.launch_over(in.rows, count_rows, all);
}

}  // namespace

JZTREE_PLAIN_KERNEL(dendrogram, TreeClusters);

}  // namespace jztree
