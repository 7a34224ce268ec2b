#include "is_sorted.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "common/cpu/context.h"
#include "falling_rows.h"

namespace jztree {
namespace {

constexpr int64_t block_rows = 1 << 14;
// After this number of rows, a thread checks whether the result is already known. In random order, one of the first few
// rows already descends.
constexpr int64_t some_rows = 1 << 8;

template <int D, typename T>
void is_sorted(const Parallel& parallel, const IsSorted<D, T>& in) {
  const KeyGrid<D> grid = in.keys.grid();
  std::atomic<bool> sorted{true};
  parallel.blocks(in.num(), block_rows, [&](int64_t begin, int64_t end) {
    FallingRows<D, T> rows(grid, in.pos);
    for (int64_t first = begin; first < end; first += some_rows) {
      if (!sorted.load(std::memory_order_relaxed)) return;
      bool rise = true;
      bool finite = rows.each(first, std::min(end, first + some_rows), [&](int64_t) { rise = false; });
      if (!rise || !finite) return sorted.store(false, std::memory_order_relaxed);
    }
  });
  *in.sorted = sorted.load();
}

}  // namespace

JZTREE_KERNEL(is_sorted, IsSorted);

}  // namespace jztree
