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

// A second thread hardly pays off, but it is then awake for the sort that follows.
constexpr int64_t row_grain = 1 << 12;

// The bounding box of rows, computed in vector loops over a few rows at a time, and the rows that are out of range.
template <int D, typename T>
class RowBounds {
 public:
  explicit RowBounds(const T* pos) : pos_(pos) {
    std::fill(low_, low_ + block_rows * D, std::numeric_limits<T>::infinity());
    std::fill(high_, high_ + block_rows * D, -std::numeric_limits<T>::infinity());
  }

  void include(int64_t begin, int64_t end) {
    for (; begin + block_rows <= end; begin += block_rows)
      if (!include_block(pos_ + begin * D)) include_each(begin, begin + block_rows);
    include_each(begin, end);
  }

  // The first row out of range, or -1.
  int64_t first_bad() const { return first_bad_; }
  int64_t number_bad() const { return number_bad_; }

  void widen(T* lower, T* upper) const {
    for (int64_t i = 0; i < block_rows * D; ++i) {
      lower[i % D] = std::min(lower[i % D], low_[i]);
      upper[i % D] = std::max(upper[i % D], high_[i]);
    }
  }

 private:
  static constexpr int64_t block_rows = 32;

  // Returns false, without any effect, if a row is out of range.
  bool include_block(const T* x) {
    int outside = 0;
    for (int64_t i = 0; i < block_rows * D; ++i) outside |= !(std::fabs(x[i]) <= farthest<T>);
    if (outside) return false;
    for (int64_t i = 0; i < block_rows * D; ++i) {
      low_[i] = x[i] < low_[i] ? x[i] : low_[i];
      high_[i] = x[i] > high_[i] ? x[i] : high_[i];
    }
    return true;
  }

  void include_each(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* x = pos_ + i * D;
      if (!is_within_range<D>(x)) {
        if (number_bad_++ == 0) first_bad_ = i;
        if (!is_finite_row<D>(x)) continue;
      }
      for (int d = 0; d < D; ++d) {
        low_[d] = std::min(low_[d], x[d]);
        high_[d] = std::max(high_[d], x[d]);
      }
    }
  }

  const T* pos_;
  int64_t first_bad_ = -1, number_bad_ = 0;
  T low_[block_rows * D], high_[block_rows * D];
};

template <int D, typename T>
void bounds(const Parallel& parallel, const BoundsOf<D, T>& in) {
  T *lower = in.lower, *upper = in.upper;
  int64_t num = in.num();
  std::mutex mutex;
  int64_t first = num, number = 0;
  std::fill(lower, lower + D, std::numeric_limits<T>::infinity());
  std::fill(upper, upper + D, -std::numeric_limits<T>::infinity());
  parallel.blocks(num, row_grain, [&](int64_t begin, int64_t end) {
    RowBounds<D, T> block(in.pos);
    block.include(begin, end);
    std::lock_guard<std::mutex> lock(mutex);
    block.widen(lower, upper);
    if (block.number_bad() > 0) first = std::min(first, block.first_bad());
    number += block.number_bad();
  });
  *in.first_bad = number > 0 ? static_cast<int32_t>(first) : -1;
  *in.bad = static_cast<int32_t>(number);
}

}  // namespace

JZTREE_KERNEL(bounds, BoundsOf);

}  // namespace jztree
