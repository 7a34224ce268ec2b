#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/keys.cuh"
#include "search.h"

namespace jztree {
namespace {

template <int D, typename T>
__global__ void count_finite(const T* sorted, Count num, const KeyGrid<D>* grid, int64_t* count) {
  if (thread_index() == 0) *count = finite_rows<D>(*grid, sorted, num());
}

template <int D, typename T>
__global__ void search_rows(const T* sorted, const int64_t* count, const T* query, int64_t queries,
                            const KeyGrid<D>* grid, bool right, int32_t* row) {
  int64_t i = thread_index();
  if (i >= queries) return;
  MortonKey key = Morton<D>::key(*grid, query + i * grid->dims);
  row[i] = static_cast<int32_t>(key_place<D>(*grid, sorted, *count, key, right));
}

template <int D, typename T>
void search(Queue& queue, const KeySearch<D, T>& in) {
  const KeyGrid<D>* grid = device_grid(queue, in.keys);
  int64_t *count = queue.scratch<int64_t>(1), queries = in.query.rows();
  queue.launch(1, 1, 0, count_finite<D, T>, in.pos, in.num, grid, count);
  queue.launch_over(queries, search_rows<D, T>, in.pos, count, in.query, queries, grid, in.right, in.row);
}

}  // namespace

JZTREE_KERNEL(search, KeySearch);

}  // namespace jztree
