#include "is_sorted.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "common/cpu/context.h"
#include "common/scale.h"
#include "is_before.h"
#include "key_levels.h"

namespace jztree {
namespace {

constexpr int64_t block_rows = 1 << 14;
// Then a thread looks up whether there is anything left to find out. Rows in random order fall among the first few.
constexpr int64_t some_rows = 1 << 8;

template <int D, typename T>
void is_sorted(const Parallel& parallel, const IsSorted<D, T>& in) {
  const KeyGrid<D> grid = in.keys.grid();
  const T* pos = in.pos;
  std::atomic<bool> sorted{true};
  parallel.blocks(in.num(), block_rows, [&](int64_t begin, int64_t end) {
    KeyLevels<D, T> levels(grid);
    uint64_t previous = begin > 0 ? OrderWords<D>::at(grid, pos + (begin - 1) * D, 0) : 0;
    for (int64_t first = begin; first < end; first += some_rows) {
      if (!sorted.load(std::memory_order_relaxed)) return;
      bool rise = true;
      levels.each(pos + first * D, std::min(some_rows, end - first), 0, [&](int64_t i, uint64_t key, bool finite) {
        const T* x = pos + (first + i) * D;
        rise &= finite || is_finite_row<D>(x);
        if (first + i > 0) rise &= !falls<D>(grid, x, previous, key);
        previous = key;
      });
      if (!rise) return sorted.store(false, std::memory_order_relaxed);
    }
  });
  *in.sorted = sorted.load();
}

}  // namespace

JZTREE_KERNEL(is_sorted, IsSorted);

}  // namespace jztree
