#include <cstdint>

#include "common/cuda/context.cuh"
#include "first_rows.h"
#include "merging.cuh"

namespace jztree {
namespace {

struct DeviceRows {
  const int32_t* children;
  Count num;
  int64_t rows;
  int32_t* first;    // [edge]
  int32_t* parent;   // [cluster], the edge that joins it to another, or -1
  int32_t* arrived;  // [edge], number of children
};

__global__ void begin_edges(DeviceRows all) {
  const int64_t edge = thread_index();
  if (edge >= all.num.rows) return;
  all.first[edge] = edge < all.num() ? static_cast<int32_t>(all.rows) : -1;
  all.arrived[edge] = 0;
}

__global__ void write_parents(DeviceRows all) {
  const int64_t edge = thread_index();
  if (edge >= all.num() || !has_clusters(all.children, edge, all.rows)) return;
  for (int i = 0; i < 2; ++i) all.parent[all.children[2 * edge + i]] = static_cast<int32_t>(edge);
}

__global__ void take_first(DeviceRows all) {
  const int64_t row = thread_index();
  if (row >= all.rows) return;
  combine_upwards(all.parent, all.rows, row, static_cast<int32_t>(row), all.first, all.arrived,
                  [](int32_t* smallest, int32_t first) { atomicMin(smallest, first); });
}

void first_rows(Queue& queue, const ClusterRows& in) {
  const int64_t edges = in.children.rows(), clusters = in.rows + edges;
  const DeviceRows all{
      in.children, in.num, in.rows, in.first, queue.scratch<int32_t>(clusters), queue.scratch<int32_t>(edges)};
  queue.fill_bytes(all.parent, 0xff, clusters);
  queue.launch_over(edges, begin_edges, all);
  queue.launch_over(edges, write_parents, all);
  queue.launch_over(in.rows, take_first, all);
}

}  // namespace

JZTREE_PLAIN_KERNEL(first_rows, ClusterRows);

}  // namespace jztree
