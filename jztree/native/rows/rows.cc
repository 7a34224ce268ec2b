// Moving whole rows of any dtype: out[i] = in[index[i]] and out[index[i]] = in[i].

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "common/cpu/handler.h"
#include "common/cpu/memory.h"
#include "common/cpu/parallel.h"

namespace jztree {
namespace {

// Size is the row size in bytes where it is known to the compiler, which makes the copy a few moves; 0 elsewhere.
template <size_t Size, bool Scatter>
bool move_rows(const Parallel& parallel, const char* in, const int32_t* index, int64_t rows, int64_t limit,
               size_t row_bytes, char* out) {
  std::atomic<bool> inside{true};
  parallel.blocks(rows, 1 << 13, [&](int64_t begin, int64_t end) {
    size_t size = Size > 0 ? Size : row_bytes;
    for (int64_t i = begin; i < end; ++i) {
      // That a place may be outside does no harm here.
      int64_t ahead = index[std::min(i + prefetch_distance, end - 1)];
      __builtin_prefetch((Scatter ? out : in) + ahead * static_cast<int64_t>(size), Scatter);
      int64_t other = index[i];
      if (other < 0 || other >= limit) {
        inside.store(false, std::memory_order_relaxed);
        continue;
      }
      int64_t from = Scatter ? i : other, to = Scatter ? other : i;
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
ffi::Error move(ffi::ThreadPool pool, ffi::AnyBuffer in, ffi::Buffer<ffi::S32> index, ffi::Result<ffi::AnyBuffer> out) {
  return guarded([&] {
    int64_t rows = static_cast<int64_t>(index.element_count());
    auto from = in.dimensions(), to = out->dimensions();
    if (from.size() == 0 || to.size() != from.size() || in.element_type() != out->element_type() ||
        (Scatter ? from[0] : to[0]) != rows)
      return invalid("rows were to be moved between arrays that do not fit together.");
    if (rows == 0 || from[0] == 0 || in.size_bytes() == 0) return ffi::Error::Success();
    size_t bytes = in.size_bytes() / static_cast<size_t>(from[0]);
    if (out->size_bytes() != bytes * static_cast<size_t>(to[0]))
      return invalid("rows were to be moved between arrays that do not fit together.");
    if (!move_rows_of_size<Scatter>(Parallel(pool), static_cast<const char*>(in.untyped_data()), index.typed_data(),
                                    rows, Scatter ? to[0] : from[0], bytes, static_cast<char*>(out->untyped_data())))
      return invalid("rows were to be moved to or from places outside their array.");
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_gather_rows, move<false>);
JZTREE_HANDLER(jztree_scatter_rows, move<true>);

}  // namespace jztree
