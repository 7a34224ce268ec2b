// Exact k nearest neighbours: the handler. The searches are in knn_short.cuh (k up to 32) and knn_long.cuh.
//
// Queries are answered in groups that follow each other in z-order. A group walks the planes of the sources from the
// top, nearest nodes first (knn_walk.cuh), so its radii are tight early and most of the tree is never seen; coordinates
// of a leaf are staged in shared memory. Nothing is stored but the lists of the groups at work; results go straight to
// their rows in the output. Ties are broken by the lower row in z-order, and a query that is a source is its own first
// neighbour. Distances are computed with the formulas and the roundings of the CPU's kernel (no fused multiply-add), so
// the results are the same bits.
//
// Squared distances in float32 vanish where neighbours are more than 2^90 times closer than the set is wide. Queries
// that meet this are put on a list and searched again in float64 by a launch that has nothing to do for nearly every
// set.

#include <cstdint>
#include <limits>

#include "common/cuda/arguments.cuh"
#include "knn_search.cuh"
#include "common/cuda/primitives.cuh"
#include "common/cuda/queue.cuh"
#include "common/cuda/tree.cuh"

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
__global__ void list_open_rows(TreeView<T> queries, const int32_t* open, const int64_t* starts, int32_t* chosen) {
  int64_t leaf = thread_index();
  if (leaf >= queries.leaves() || open[leaf] == 0) return;
  int64_t place = starts[leaf];
  for (int64_t row = queries.leaf_row(leaf); row < queries.leaf_row(leaf + 1); ++row)
    chosen[place++] = static_cast<int32_t>(row);
}

// Only the queries of open leaves are answered.
template <typename T>
void choose_open(Queue& queue, const int32_t* open, Problem<T>* problem) {
  int64_t leaves = problem->queries.leaves();
  int64_t* starts = queue.scratch<int64_t>(leaves + 1);
  int32_t* chosen = queue.scratch<int32_t>(problem->queries.num.rows);
  queue.launch_over(leaves + 1, count_open_rows<T>, problem->queries, open, starts);
  exclusive_sum(queue, starts, starts, leaves + 1);
  queue.launch_over(leaves, list_open_rows<T>, problem->queries, open, starts, chosen);
  problem->chosen = chosen;
  problem->chosen_count = starts + leaves;
}

// Whether a result takes up what `old` holds, if that is given; copies it where XLA gave the result other memory.
template <typename Old, typename Result>
bool continues(Queue& queue, const Old& old, Result& result) {
  if (old.element_count() == 0) return true;
  if (old.size_bytes() != result.size_bytes()) return false;
  if (old.untyped_data() != result.untyped_data())
    queue.copy(static_cast<char*>(result.untyped_data()), static_cast<const char*>(old.untyped_data()),
               static_cast<int64_t>(old.size_bytes()));
  return true;
}

// Arguments as of the CPU's kernel.
ffi::Error knn(cudaStream_t stream, DeviceMemory scratch, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num,
               ffi::Buffer<ffi::S32> splits, ffi::Buffer<ffi::S32> particle_splits, ffi::AnyBuffer lower,
               ffi::AnyBuffer upper, ffi::Buffer<ffi::S32> source_rows, ffi::AnyBuffer query,
               ffi::Buffer<ffi::S32> query_num, ffi::Buffer<ffi::S32> query_splits,
               ffi::Buffer<ffi::S32> query_particle_splits, ffi::AnyBuffer query_lower, ffi::AnyBuffer query_upper,
               ffi::Buffer<ffi::S32> query_rows, ffi::Buffer<ffi::S32> own_offset, ffi::Buffer<ffi::S32> open,
               ffi::AnyBuffer box, ffi::AnyBuffer domain, ffi::AnyBuffer old_radius, ffi::Buffer<ffi::S32> old_index,
               ffi::Result<ffi::AnyBuffer> radius, ffi::Result<ffi::Buffer<ffi::S32>> index,
               ffi::Span<const int64_t> plane_sizes, ffi::Span<const int64_t> query_plane_sizes, bool self) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    int64_t n = pos.dimensions()[0], q = query.dimensions()[0];
    auto shape = radius->dimensions();
    auto rows_fit = [](const auto& rows, int64_t count) {
      return rows.element_count() == 0 || static_cast<int64_t>(rows.element_count()) == count;
    };
    Extent<T> extent{};
    Queue queue(stream, scratch);
    auto sources = read_tree<D, T>(pos, num, splits, particle_splits, lower, upper, plane_sizes);
    auto queries = read_tree<D, T>(query, query_num, query_splits, query_particle_splits, query_lower, query_upper,
                                   query_plane_sizes);
    if (!sources || !queries || !read_lengths(box, D, &extent.box) || shape.size() != 2 || shape[0] != q ||
        radius->element_type() != pos.element_type() || index->element_count() != radius->element_count() ||
        !rows_fit(source_rows, n) || !rows_fit(query_rows, q) || own_offset.element_count() != 1 ||
        domain.element_type() != pos.element_type() ||
        (domain.element_count() != 0 && domain.element_count() != 2 * D) || !rows_fit(open, query_plane_sizes[0]) ||
        !continues(queue, old_radius, *radius) || !continues(queue, old_index, *index))
      return invalid("knn was called with arrays that do not fit together.");
    if (shape[1] == 0 || q == 0) return ffi::Error::Success();
    if (domain.element_count() > 0) extent.corners = domain.typed_data<T>();
    Problem<T> problem{*sources, *queries, self, own_offset.typed_data(), listed(source_rows), listed(query_rows),
                       nullptr,  nullptr,  q,    radius->typed_data<T>(), index->typed_data(), shape[1]};
    if (open.element_count() > 0) choose_open(queue, open.typed_data(), &problem);
    search(queue, problem, extent);
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_knn, knn, "plane_sizes", "query_plane_sizes", "self");

}  // namespace jztree
