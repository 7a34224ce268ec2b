#include "rows.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "common/cpu/context.h"

namespace jztree {
namespace {

// Size: the row size in bytes if it is known at compile time, which turns the copy into a few moves; otherwise 0.
template <size_t Size, bool Scatter>
bool move_rows(const Parallel& parallel, const char* in, const int32_t* index, int64_t rows, int64_t limit,
               size_t row_bytes, char* out) {
  std::atomic<bool> inside{true};
  parallel.blocks(rows, 1 << 13, [&](int64_t begin, int64_t end) {
    size_t size = Size > 0 ? Size : row_bytes;
    for (int64_t i = begin; i < end; ++i) {
      // A prefetch outside the array is harmless.
      int64_t ahead = index[std::min(i + prefetch_distance, end - 1)];
      __builtin_prefetch((Scatter ? out : in) + ahead * static_cast<int64_t>(size), Scatter);
      int64_t indexed_row = index[i];
      if (indexed_row < 0 || indexed_row >= limit) {
        inside.store(false, std::memory_order_relaxed);
        continue;
      }
      int64_t from = Scatter ? i : indexed_row, to = Scatter ? indexed_row : i;
      std::memcpy(out + static_cast<size_t>(to) * size, in + static_cast<size_t>(from) * size, size);
    }
  });
  return inside.load();
}

template <bool Scatter>
bool move_rows_of_size(const Parallel& parallel, const char* in, const int32_t* index, int64_t rows, int64_t limit,
                       size_t bytes, char* out) {
  switch (bytes) {
    case 4: return move_rows<4, Scatter>(parallel, in, index, rows, limit, bytes, out);
    case 8: return move_rows<8, Scatter>(parallel, in, index, rows, limit, bytes, out);
    case 12: return move_rows<12, Scatter>(parallel, in, index, rows, limit, bytes, out);
    case 16: return move_rows<16, Scatter>(parallel, in, index, rows, limit, bytes, out);
    case 24: return move_rows<24, Scatter>(parallel, in, index, rows, limit, bytes, out);
    case 32: return move_rows<32, Scatter>(parallel, in, index, rows, limit, bytes, out);
    default: return move_rows<0, Scatter>(parallel, in, index, rows, limit, bytes, out);
  }
}

template <bool Scatter>
void move(const Parallel& parallel, const MoveRows<Scatter>& in) {
  if (in.nothing_to_move()) return;
  if (!move_rows_of_size<Scatter>(parallel, static_cast<const char*>(in.in.data), in.index, in.rows, in.limit,
                                  static_cast<size_t>(in.row_bytes), static_cast<char*>(in.out.data)))
    throw Refusal("a row index is outside its array.");
}

void gather_rows(const Parallel& parallel, const GatherRows& in) { move(parallel, in); }
void scatter_rows(const Parallel& parallel, const ScatterRows& in) { move(parallel, in); }

}  // namespace

JZTREE_PLAIN_KERNEL(gather_rows, GatherRows);
JZTREE_PLAIN_KERNEL(scatter_rows, ScatterRows);

}  // namespace jztree
