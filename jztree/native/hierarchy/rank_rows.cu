#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/primitives.cuh"
#include "rank_rows.h"

namespace jztree {
namespace {

template <typename T>
__global__ void make_keys(const T* number, Count num, uint64_t* key, uint32_t* row) {
  const int64_t i = thread_index();
  if (i >= num.rows) return;
  // The sort is stable, so rows after the last particle keep their places.
  key[i] = i < num() ? descending_bits(number[i]) : ~uint64_t{0};
  row[i] = static_cast<uint32_t>(i);
}

__global__ void write_ranks(const uint32_t* row, int64_t rows, int32_t* order, int32_t* rank) {
  const int64_t i = thread_index();
  if (i >= rows) return;
  order[i] = static_cast<int32_t>(row[i]);
  rank[row[i]] = static_cast<int32_t>(i);
}

template <int D, typename T>
void rank_rows(Queue& queue, const RowRanks<D, T>& in) {
  const int64_t n = in.number.rows();
  if (n == 0) return;
  DoubleBuffer<uint64_t> keys{queue.scratch<uint64_t>(n), queue.scratch<uint64_t>(n)};
  DoubleBuffer<uint32_t> rows{queue.scratch<uint32_t>(n), queue.scratch<uint32_t>(n)};
  queue.launch_over(n, make_keys<T>, in.number, in.num, keys.current, rows.current);
  sort_pairs(queue, keys, rows, n);
  queue.launch_over(n, write_ranks, rows.current, n, in.order, in.rank);
}

}  // namespace

JZTREE_KERNEL(rank_rows, RowRanks);

}  // namespace jztree
