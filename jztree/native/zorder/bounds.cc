#include "bounds.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <mutex>

#include "common/cpu/context.h"
#include "common/morton.h"
#include "common/scale.h"

namespace jztree {
namespace {

// Hardly worth a second thread, but the sort that follows finds it awake.
constexpr int64_t row_grain = 1 << 12;

template <int D, typename T>
void bounds(const Parallel& parallel, const BoundsOf<D, T>& in) {
  const T* pos = in.pos;
  T *lower = in.lower, *upper = in.upper;
  int64_t num = in.num();
  std::mutex mutex;
  int64_t bad = num;
  std::fill(lower, lower + D, std::numeric_limits<T>::infinity());
  std::fill(upper, upper + D, -std::numeric_limits<T>::infinity());
  parallel.blocks(num, row_grain, [&](int64_t begin, int64_t end) {
    T low[D], high[D];
    std::fill(low, low + D, std::numeric_limits<T>::infinity());
    std::fill(high, high + D, -std::numeric_limits<T>::infinity());
    int64_t block_bad = num;
    for (int64_t i = begin; i < end; ++i) {
      const T* x = pos + i * D;
      if (!is_within_range<D>(x)) {
        block_bad = std::min(block_bad, i);
        if (!is_finite_row<D>(x)) continue;
      }
      for (int d = 0; d < D; ++d) {
        low[d] = std::min(low[d], x[d]);
        high[d] = std::max(high[d], x[d]);
      }
    }
    std::lock_guard<std::mutex> lock(mutex);
    for (int d = 0; d < D; ++d) {
      lower[d] = std::min(lower[d], low[d]);
      upper[d] = std::max(upper[d], high[d]);
    }
    bad = std::min(bad, block_bad);
  });
  *in.first_bad = bad < num ? static_cast<int32_t>(bad) : -1;
}

}  // namespace

JZTREE_KERNEL(bounds, BoundsOf);

}  // namespace jztree
