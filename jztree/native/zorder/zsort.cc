// Kernels of the z-order: the bounding box of the particles, the order by Morton key, and searching in it.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <mutex>
#include <numeric>

#include "common/morton.h"
#include "common/scale.h"
#include "common/cpu/handler.h"
#include "common/cpu/parallel.h"
#include "zorder_sort.h"

namespace jztree {
namespace {

constexpr int64_t row_grain = 1 << 14;

template <int D, typename T>
void bounds_of(const Parallel& parallel, const T* pos, int64_t num, T* lower, T* upper, int32_t* first_bad) {
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
  *first_bad = bad < num ? static_cast<int32_t>(bad) : -1;
}

ffi::Error bounds(ffi::ThreadPool pool, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num,
                  ffi::Result<ffi::AnyBuffer> lower, ffi::Result<ffi::AnyBuffer> upper,
                  ffi::Result<ffi::Buffer<ffi::S32>> first_bad) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    if (lower->element_count() != D || upper->element_count() != D) return invalid("bounds must have shape (d,).");
    bounds_of<D>(Parallel(pool), pos.typed_data<T>(), read_count(num, pos.dimensions()[0]), lower->typed_data<T>(),
                 upper->typed_data<T>(), first_bad->typed_data());
    return ffi::Error::Success();
  });
}

ffi::Error zsort(ffi::ThreadPool pool, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num, ffi::AnyBuffer lower,
                 ffi::AnyBuffer upper, ffi::AnyBuffer box, ffi::Result<ffi::Buffer<ffi::S32>> order,
                 ffi::Result<ffi::AnyBuffer> sorted) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    int64_t n = pos.dimensions()[0];
    double period[D];
    if (!read_exact(box, D, period) || lower.element_count() != D || upper.element_count() != D ||
        static_cast<int64_t>(order->element_count()) != n || sorted->element_type() != pos.element_type() ||
        sorted->element_count() != pos.element_count())
      return invalid("zsort was called with arrays that do not fit together.");
    KeyGrid<D> grid(lower.typed_data<T>(), upper.typed_data<T>(), period);
    const T* given = pos.typed_data<T>();
    RowArrays<D, T> out{reinterpret_cast<uint32_t*>(order->typed_data()), sorted->typed_data<T>()};
    int64_t count = read_count(num, n);
    ZSort<D, T>(Parallel(pool), grid, given, count, out);
    std::iota(out.row + count, out.row + n, static_cast<uint32_t>(count));
    std::copy(given + count * D, given + n * D, out.x + count * D);
    return ffi::Error::Success();
  });
}

// How many rows are finite, if all others are behind them.
template <int D, typename T>
int64_t finite_rows(const T* sorted, int64_t num) {
  int64_t first = 0, last = num;
  while (first < last) {
    int64_t middle = (first + last) / 2;
    bool finite = is_finite_row<D>(sorted + middle * D);
    (finite ? first : last) = finite ? middle + 1 : middle;
  }
  return first;
}

// For every query the first row of the z-ordered pos whose key is not below (right: is above) the query's key.
ffi::Error search(ffi::ThreadPool pool, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num, ffi::AnyBuffer query,
                  ffi::AnyBuffer lower, ffi::AnyBuffer upper, ffi::AnyBuffer box,
                  ffi::Result<ffi::Buffer<ffi::S32>> row, bool right) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    double period[D];
    auto shape = query.dimensions();
    if (!read_exact(box, D, period) || shape.size() != 2 || shape[1] != D ||
        query.element_type() != pos.element_type() || lower.element_count() != D || upper.element_count() != D ||
        static_cast<int64_t>(row->element_count()) != shape[0])
      return invalid("search was called with arrays that do not fit together.");
    const T *sorted = pos.typed_data<T>(), *wanted = query.typed_data<T>();
    int32_t* out = row->typed_data();
    KeyGrid<D> grid(lower.typed_data<T>(), upper.typed_data<T>(), period);
    int64_t count = finite_rows<D>(sorted, read_count(num, pos.dimensions()[0]));
    Parallel(pool).blocks(shape[0], 1 << 10, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        MortonKey key = Morton<D>::key(grid, wanted + i * D);
        int64_t first = 0, last = count;
        while (first < last) {
          int64_t middle = (first + last) / 2;
          MortonKey other = Morton<D>::key(grid, sorted + middle * D);
          bool before = right ? !(key < other) : other < key;
          (before ? first : last) = before ? middle + 1 : middle;
        }
        out[i] = static_cast<int32_t>(first);
      }
    });
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_bounds, bounds);
JZTREE_HANDLER(jztree_zsort, zsort);
JZTREE_HANDLER(jztree_search, search, "right");

}  // namespace jztree
