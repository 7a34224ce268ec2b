// The time is bound by memory. A thread moves one word, of the widest type that divides the row size, so that
// neighbouring threads access neighbouring words of a row.

#include <cstdint>

#include "common/cuda/context.cuh"
#include "rows.h"

namespace jztree {
namespace {

// Indices outside the array are skipped. This library never passes such an index.
template <typename Word, bool Scatter>
__global__ void move_words(const Word* in, const int32_t* index, int64_t rows, int64_t limit, int64_t words,
                           Word* out) {
  int64_t thread = thread_index();
  if (thread >= rows * words) return;
  int64_t row = words == 1 ? thread : thread / words, word = thread - row * words, other = index[row];
  if (other < 0 || other >= limit) return;
  int64_t from = Scatter ? row : other, to = Scatter ? other : row;
  out[to * words + word] = in[from * words + word];
}

template <bool Scatter>
void move(Queue& queue, const MoveRows<Scatter>& in) {
  if (in.nothing_to_move()) return;
  auto run = [&](auto word) {
    using Word = decltype(word);
    int64_t words = in.row_bytes / static_cast<int64_t>(sizeof(Word));
    queue.launch_over(in.rows * words, move_words<Word, Scatter>, static_cast<const Word*>(in.in.data), in.index.data,
                      in.rows, in.limit, words, static_cast<Word*>(in.out.data));
  };
  if (in.row_bytes % 8 == 0) {
    run(uint64_t{});
  } else if (in.row_bytes % 4 == 0) {
    run(uint32_t{});
  } else {
    run(uint8_t{});
  }
}

void gather_rows(Queue& queue, const GatherRows& in) { move(queue, in); }
void scatter_rows(Queue& queue, const ScatterRows& in) { move(queue, in); }

}  // namespace

JZTREE_PLAIN_KERNEL(gather_rows, GatherRows);
JZTREE_PLAIN_KERNEL(scatter_rows, ScatterRows);

}  // namespace jztree
