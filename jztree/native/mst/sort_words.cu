// Stable radix sorts by pairs of words, from the last pair to the first.

#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/primitives.cuh"
#include "sort_words.h"

namespace jztree {
namespace {

__global__ void number_rows(int64_t rows, uint32_t* order) {
  const int64_t row = thread_index();
  if (row < rows) order[row] = static_cast<uint32_t>(row);
}

// Rows from `num` on have the largest key, and are behind all rows that have it too, because the sorts are stable.
__global__ void take_pairs(const uint32_t* words, int64_t width, int64_t column, Count num, int64_t rows,
                           const uint32_t* order, uint64_t* keys) {
  const int64_t place = thread_index();
  if (place >= rows) return;
  const int64_t row = order[place];
  keys[place] = row < num() ? word_pair(words + row * width + column) : ~uint64_t{0};
}

void sort_words(Queue& queue, const SortWords& in) {
  const int64_t rows = in.words.rows();
  if (rows == 0) return;
  DoubleBuffer<uint64_t> keys{queue.scratch<uint64_t>(rows), queue.scratch<uint64_t>(rows)};
  DoubleBuffer<uint32_t> order{queue.scratch<uint32_t>(rows), queue.scratch<uint32_t>(rows)};
  queue.launch_over(rows, number_rows, rows, order.current);
  for (int64_t column = in.width() - 2; column >= 0; column -= 2) {
    queue.launch_over(rows, take_pairs, in.words.data, in.width(), column, in.num, rows, order.current, keys.current);
    sort_pairs(queue, keys, order, rows);
  }
  queue.copy(in.order, reinterpret_cast<const int32_t*>(order.current), rows);
}

}  // namespace

JZTREE_PLAIN_KERNEL(sort_words, SortWords);

}  // namespace jztree
