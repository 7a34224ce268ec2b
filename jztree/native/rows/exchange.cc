// Rows on their way between ranks: grouped by destination, packed into one buffer whatever arrays they are made of, and
// unpacked at the place they are to have.
//
// A row is the bytes of its part of every array, one after the other, filled up to whole words of 32 bits. A segment is
// a run of rows to or from one rank.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/cpu/handler.h"
#include "common/cpu/memory.h"
#include "common/cpu/parallel.h"

namespace jztree {
namespace {

constexpr int64_t move_grain = 1 << 13;

// An array of rows, of which `offset` is the place in the packed row.
struct Column {
  char* data;
  int64_t rows;
  size_t bytes, offset;
};

struct Columns {
  std::vector<Column> list;
  size_t bytes = 0;

  template <typename Buffer>
  bool add(const Buffer& buffer, void* data) {
    auto dims = buffer.dimensions();
    if (dims.size() == 0) return false;
    size_t rows = static_cast<size_t>(dims[0]);
    size_t size = rows == 0 ? 0 : buffer.size_bytes() / rows;
    list.push_back({static_cast<char*>(data), dims[0], size, bytes});
    bytes += size;
    return dims[0] == list.front().rows;
  }

  int64_t rows() const { return list.empty() ? 0 : list.front().rows; }

  // A row that is read or written soon; one that is outside does no harm.
  void prefetch(int64_t row) const {
    for (const Column& column : list) __builtin_prefetch(column.data + row * static_cast<int64_t>(column.bytes));
  }

  void pack(int64_t row, char* out) const {
    for (const Column& column : list)
      std::memcpy(out + column.offset, column.data + static_cast<size_t>(row) * column.bytes, column.bytes);
  }

  void unpack(const char* in, int64_t row) const {
    for (const Column& column : list)
      std::memcpy(column.data + static_cast<size_t>(row) * column.bytes, in + column.offset, column.bytes);
  }

  // Copies a row of `from`, whose columns are as wide, here.
  void copy(const Columns& from, int64_t source, int64_t row) const {
    for (size_t i = 0; i < list.size(); ++i)
      std::memcpy(list[i].data + static_cast<size_t>(row) * list[i].bytes,
                  from.list[i].data + static_cast<size_t>(source) * list[i].bytes, list[i].bytes);
  }
};

// A list of rows, or all rows in their order if it is empty; -1 outside.
class Order {
 public:
  explicit Order(const ffi::Buffer<ffi::S32>& rows)
      : rows_(rows.typed_data()), count_(static_cast<int64_t>(rows.element_count())) {}

  int64_t operator()(int64_t i) const { return count_ == 0 ? i : i >= 0 && i < count_ ? rows_[i] : -1; }

 private:
  const int32_t* rows_;
  int64_t count_;
};

ffi::Error misfit(const char* what) {
  return invalid(std::string(what) + " was called with arrays that do not fit together.");
}

bool read_columns(const ffi::RemainingArgs& args, size_t begin, size_t end, Columns& columns) {
  for (size_t i = begin; i < end; ++i) {
    auto buffer = args.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value() || !columns.add(*buffer, buffer->untyped_data())) return false;
  }
  return true;
}

// The results, which hold what the arguments from `begin` on hold: the same memory if XLA could arrange that.
bool continue_columns(const ffi::RemainingArgs& args, size_t begin, ffi::RemainingRets& rets, Columns& columns) {
  for (size_t i = 0; i < rets.size(); ++i) {
    auto old = args.get<ffi::AnyBuffer>(begin + i);
    auto buffer = rets.get<ffi::AnyBuffer>(i);
    if (!old.has_value() || !buffer.has_value() || old->size_bytes() != (*buffer)->size_bytes() ||
        !columns.add(**buffer, (*buffer)->untyped_data()))
      return false;
    if (old->untyped_data() != (*buffer)->untyped_data())
      std::memcpy((*buffer)->untyped_data(), old->untyped_data(), old->size_bytes());
  }
  return true;
}

// buffer[s, j] = row order[starts[s] + j] of the arrays, for j below counts[s]. An empty order is the identity.
ffi::Error pack_segments(ffi::ThreadPool pool, ffi::Buffer<ffi::S32> order, ffi::Buffer<ffi::S32> starts,
                         ffi::Buffer<ffi::S32> counts, ffi::RemainingArgs arrays,
                         ffi::Result<ffi::Buffer<ffi::U32>> buffer) {
  return guarded([&] {
    Columns columns;
    auto shape = buffer->dimensions();
    if (shape.size() != 3 || static_cast<int64_t>(starts.element_count()) != shape[0] ||
        static_cast<int64_t>(counts.element_count()) != shape[0] || !read_columns(arrays, 0, arrays.size(), columns) ||
        columns.bytes > static_cast<size_t>(shape[2]) * 4)
      return misfit("pack_segments");
    int64_t chunk = shape[1];
    Order listed(order);
    size_t stride = static_cast<size_t>(shape[2]) * 4;
    char* out = reinterpret_cast<char*>(buffer->typed_data());
    std::atomic<bool> inside{true};
    for (int64_t s = 0; s < shape[0]; ++s) {
      int64_t start = starts.typed_data()[s], count = std::min<int64_t>(chunk, counts.typed_data()[s]);
      if (count <= 0) continue;
      Parallel(pool).blocks(count, move_grain, [&](int64_t begin, int64_t end) {
        for (int64_t j = begin; j < end; ++j) {
          columns.prefetch(listed(start + std::min(j + prefetch_distance, end - 1)));
          int64_t row = listed(start + j);
          if (row < 0 || row >= columns.rows()) {
            inside.store(false, std::memory_order_relaxed);
            continue;
          }
          columns.pack(row, out + static_cast<size_t>(s * chunk + j) * stride);
        }
      });
    }
    return inside.load() ? ffi::Error::Success() : misfit("pack_segments");
  });
}

// Row order[starts[s] + j] of the arrays = buffer[s, j], for j below counts[s]; all other rows stay. An empty order is
// the identity.
ffi::Error unpack_segments(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> buffer, ffi::Buffer<ffi::S32> order,
                           ffi::Buffer<ffi::S32> starts, ffi::Buffer<ffi::S32> counts, ffi::RemainingArgs olds,
                           ffi::RemainingRets news) {
  return guarded([&] {
    Columns columns;
    auto shape = buffer.dimensions();
    if (shape.size() != 3 || static_cast<int64_t>(starts.element_count()) != shape[0] ||
        static_cast<int64_t>(counts.element_count()) != shape[0] || olds.size() != news.size() ||
        !continue_columns(olds, 0, news, columns) || columns.bytes > static_cast<size_t>(shape[2]) * 4)
      return misfit("unpack_segments");
    int64_t chunk = shape[1];
    Order place(order);
    std::atomic<bool> inside{true};
    size_t stride = static_cast<size_t>(shape[2]) * 4;
    const char* in = reinterpret_cast<const char*>(buffer.typed_data());
    for (int64_t s = 0; s < shape[0]; ++s) {
      int64_t start = starts.typed_data()[s], count = std::min<int64_t>(chunk, counts.typed_data()[s]);
      if (count <= 0) continue;
      Parallel(pool).blocks(count, move_grain, [&](int64_t begin, int64_t end) {
        for (int64_t j = begin; j < end; ++j) {
          columns.prefetch(place(start + std::min(j + prefetch_distance, end - 1)));
          int64_t row = place(start + j);
          if (row < 0 || row >= columns.rows()) {
            inside.store(false, std::memory_order_relaxed);
            continue;
          }
          columns.unpack(in + static_cast<size_t>(s * chunk + j) * stride, row);
        }
      });
    }
    return inside.load() ? ffi::Error::Success() : misfit("unpack_segments");
  });
}

// Row to_order[target + j] of the results = row from_order[start + j] of the first half of the arrays, for j below
// count; all other rows are those of the second half. place: start, target and count. An empty order is the identity.
ffi::Error place_rows(ffi::ThreadPool pool, ffi::Buffer<ffi::S32> from_order, ffi::Buffer<ffi::S32> to_order,
                      ffi::Buffer<ffi::S32> place, ffi::RemainingArgs arrays, ffi::RemainingRets news) {
  return guarded([&] {
    Columns from, to;
    if (place.element_count() != 3 || arrays.size() != 2 * news.size() || !read_columns(arrays, 0, news.size(), from) ||
        !continue_columns(arrays, news.size(), news, to))
      return misfit("place_rows");
    int64_t start = place.typed_data()[0], target = place.typed_data()[1], count = place.typed_data()[2];
    if (count <= 0) return ffi::Error::Success();
    for (size_t i = 0; i < to.list.size(); ++i)
      if (to.list[i].bytes != from.list[i].bytes) return misfit("place_rows");
    Order source(from_order), goal(to_order);
    std::atomic<bool> inside{true};
    Parallel(pool).blocks(count, move_grain, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) {
        int64_t ahead = std::min(j + prefetch_distance, end - 1);
        from.prefetch(source(start + ahead));
        to.prefetch(goal(target + ahead));
        int64_t row = source(start + j), out = goal(target + j);
        if (row < 0 || row >= from.rows() || out < 0 || out >= to.rows()) {
          inside.store(false, std::memory_order_relaxed);
          continue;
        }
        to.copy(from, row, out);
      }
    });
    return inside.load() ? ffi::Error::Success() : misfit("place_rows");
  });
}

// The rows below num in the order of their ranks, stable; those whose rank is no rank are left out.
ffi::Error group_by_rank(ffi::ThreadPool pool, ffi::Buffer<ffi::S32> rank, ffi::Buffer<ffi::S32> num,
                         ffi::Result<ffi::Buffer<ffi::S32>> order, ffi::Result<ffi::Buffer<ffi::S32>> counts) {
  return guarded([&] {
    int64_t rows = static_cast<int64_t>(rank.element_count()), ranks = static_cast<int64_t>(counts->element_count());
    if (static_cast<int64_t>(order->element_count()) != rows) return misfit("group_by_rank");
    const int32_t* of = rank.typed_data();
    int64_t count = read_count(num, rows), grain = std::max<int64_t>(1 << 14, 4 * ranks);
    int64_t blocks = (count + grain - 1) / grain;
    // next[b * ranks + r]: where block b puts its next row for rank r.
    std::vector<int64_t> next(static_cast<size_t>(blocks * ranks), 0);
    auto each = [&](int64_t block, auto&& work) {
      for (int64_t i = block * grain; i < std::min(count, (block + 1) * grain); ++i)
        if (of[i] >= 0 && of[i] < ranks) work(i, next[static_cast<size_t>(block * ranks + of[i])]);
    };
    Parallel parallel(pool);
    parallel.blocks(blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) each(b, [](int64_t, int64_t& place) { ++place; });
    });
    int64_t place = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      int64_t first = place;
      for (int64_t b = 0; b < blocks; ++b) {
        int64_t here = next[static_cast<size_t>(b * ranks + r)];
        next[static_cast<size_t>(b * ranks + r)] = place;
        place += here;
      }
      counts->typed_data()[r] = static_cast<int32_t>(place - first);
    }
    parallel.blocks(blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b)
        each(b, [&](int64_t i, int64_t& to) { order->typed_data()[to++] = static_cast<int32_t>(i); });
    });
    std::fill(order->typed_data() + place, order->typed_data() + rows, -1);
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_pack_segments, pack_segments);
JZTREE_HANDLER(jztree_unpack_segments, unpack_segments);
JZTREE_HANDLER(jztree_place_rows, place_rows);
JZTREE_HANDLER(jztree_group_by_rank, group_by_rank);

}  // namespace jztree
