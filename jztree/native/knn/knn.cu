// The searches are in knn_short.cuh (k up to 128) and knn_long.cuh.
//
// Queries are answered in groups that are consecutive in z-order. A group walks the planes of the sources from the top,
// nearest nodes first (knn_walk.cuh), so its radii become tight early and most of the tree is never visited.
// Coordinates of a leaf are staged in shared memory. Only the lists of the current groups are stored; results go
// straight to their rows in the output. Ties are broken by the lower row in z-order. A query that is a source is either
// its own first neighbour or is excluded. Distances are computed with the formulas and the roundings of the CPU kernel
// (no fused multiply-add), so the results have the same bits.
//
// Squared distances in float32 underflow if neighbours are more than 2^90 times closer than the set is wide. The kernel
// lists such queries, and a second launch searches them again in float64. For nearly every set the list is empty.

#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/primitives.cuh"
#include "common/cuda/tree.cuh"
#include "common/cuda/wrapped.cuh"
#include "knn.h"
#include "knn_search.cuh"

namespace jztree {
namespace {

template <typename T>
__global__ void count_open_rows(TreeView<T> queries, const int32_t* open, int64_t* rows) {
  int64_t leaf = thread_index();
  if (leaf > queries.leaves()) return;
  bool searched = leaf < queries.leaves() && open[leaf] != 0;
  rows[leaf] = searched ? queries.leaf_row(leaf + 1) - queries.leaf_row(leaf) : 0;
}

template <typename T>
__global__ void list_open_rows(TreeView<T> queries, const int32_t* open, const int64_t* starts, int32_t* query_list) {
  int64_t leaf = thread_index();
  if (leaf >= queries.leaves() || open[leaf] == 0) return;
  int64_t place = starts[leaf];
  for (int64_t row = queries.leaf_row(leaf); row < queries.leaf_row(leaf + 1); ++row)
    query_list[place++] = static_cast<int32_t>(row);
}

// Choose only the queries of open leaves.
template <typename T>
void choose_open(Queue& queue, const int32_t* open, Problem<T>* problem) {
  int64_t leaves = problem->queries.leaves();
  int64_t* starts = queue.scratch<int64_t>(leaves + 1);
  int32_t* query_list = queue.scratch<int32_t>(problem->queries.num.rows);
  queue.launch_over(leaves + 1, count_open_rows<T>, problem->queries, open, starts);
  exclusive_sum(queue, starts, starts, leaves + 1);
  queue.launch_over(leaves, list_open_rows<T>, problem->queries, open, starts, query_list);
  problem->query_list = query_list;
  problem->query_list_count = starts + leaves;
}

template <int D, typename T>
void knn(Queue& queue, const Neighbours<D, T>& in) {
  if (in.k() == 0 || in.q() == 0) return;
  Problem<T> problem{on_device(in.sources),
                     on_device(in.queries),
                     in.self,
                     in.own_offset,
                     in.exclude_self,
                     in.sources.rows,
                     in.queries.rows,
                     nullptr,
                     nullptr,
                     in.q(),
                     in.radii() ? in.radii() : queue.scratch<T>(in.q() * in.k()),
                     in.index,
                     in.k(),
                     in.limit,
                     in.self ? any_wrapped(queue, in.box, on_device(in.sources))
                             : any_wrapped(queue, in.box, on_device(in.sources), on_device(in.queries))};
  if (in.open) choose_open(queue, in.open, &problem);
  search(queue, problem, Extent<T>{in.box, in.domain});
}

}  // namespace

JZTREE_KERNEL(knn, Neighbours);

}  // namespace jztree
