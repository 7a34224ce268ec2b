// A radix sort by few bits: one pass for up to 255 ranks.

#include <algorithm>
#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/primitives.cuh"
#include "common/partition.h"
#include "group_by_rank.h"

namespace jztree {
namespace {

// Rows without a valid rank get the number after the last rank, which sorts them to the end.
__global__ void sort_keys(const int32_t* rank, Count num, int64_t ranks, uint32_t* key, int32_t* row) {
  int64_t i = thread_index();
  if (i >= num.rows) return;
  bool goes = i < num() && rank[i] >= 0 && rank[i] < ranks;
  key[i] = static_cast<uint32_t>(goes ? rank[i] : ranks);
  row[i] = static_cast<int32_t>(i);
}

__device__ int64_t first_of(const uint32_t* sorted, int64_t count, int64_t key) {
  return partition_point(0, count, [&](int64_t i) { return sorted[i] < key; });
}

__global__ void finish_groups(const uint32_t* key, const int32_t* row, int64_t rows, int64_t ranks, int32_t* order,
                              int32_t* counts) {
  int64_t i = thread_index();
  // The rows may be sorted in place.
  if (i < rows) order[i] = row[i];
  if (i < ranks) counts[i] = static_cast<int32_t>(first_of(key, rows, i + 1) - first_of(key, rows, i));
}

void group_by_rank(Queue& queue, const GroupByRank& in) {
  int64_t rows = in.rows(), ranks = in.ranks();
  DoubleBuffer<uint32_t> keys{queue.scratch<uint32_t>(rows), queue.scratch<uint32_t>(rows)};
  DoubleBuffer<int32_t> sorted{queue.scratch<int32_t>(rows), in.order};
  if (rows > 0) {
    queue.launch_over(rows, sort_keys, in.rank, in.num, ranks, keys.current, sorted.current);
    sort_pairs(queue, keys, sorted, rows, 0, bits_of(ranks));
  }
  queue.launch_over(std::max(rows, ranks), finish_groups, keys.current, sorted.current, rows, ranks, in.order,
                    in.counts);
}

}  // namespace

JZTREE_PLAIN_KERNEL(group_by_rank, GroupByRank);

}  // namespace jztree
