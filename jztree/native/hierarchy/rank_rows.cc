#include "rank_rows.h"

#include <cstdint>

#include "common/cpu/context.h"
#include "mst/edge_sort.h"

namespace jztree {
namespace {

template <int D, typename T>
void rank_rows(const Parallel& parallel, const RowRanks<D, T>& in) {
  const int64_t num = in.num();
  Scratch<uint32_t> bits(2 * num);
  Scratch<int32_t> rows(2 * num);
  const EdgeList list(bits.get(), rows.get());
  parallel.blocks(num, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      list.set(row, {descending_bits(in.number[row]), Link(static_cast<uint64_t>(row))});
  });
  auto write = [&](int64_t rank, int64_t row) {
    in.order[rank] = static_cast<int32_t>(row);
    in.rank[row] = static_cast<int32_t>(rank);
  };
  if (num > 0)
    EdgeSort<>(parallel, list, num)
        .run([](const Link& row) { return row.bits; },
             [&](int64_t rank, const Edge& one) { write(rank, static_cast<int64_t>(one.link.bits)); });
  for (int64_t row = num; row < in.number.rows(); ++row) write(row, row);
}

}  // namespace

JZTREE_KERNEL(rank_rows, RowRanks);

}  // namespace jztree
