#include "segments.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "common/cpu/context.h"

namespace jztree {
namespace {

constexpr int64_t move_grain = 1 << 13;

// Rows that are moved at a time, with a separate loop for each array.
struct Rows {
  static constexpr int64_t capacity = prefetch_distance;

  int64_t rows[capacity], count;

  bool consecutive() const {
    int64_t differences = 0;
    for (int64_t i = 0; i < count; ++i) differences |= rows[i] ^ (rows[0] + i);
    return differences == 0;
  }
};

// An array of rows; `offset` is its position in the packed row.
struct Column {
  char* data;
  size_t bytes, offset;

  char* row(int64_t i, size_t width) const { return data + static_cast<size_t>(i) * width; }
};

// Call copy(width) with a constant for the usual widths, so that a copy is one or two instructions.
template <typename Copy>
void with_width(size_t bytes, const Copy& copy) {
  switch (bytes) {
    case 4: return copy(std::integral_constant<size_t, 4>());
    case 8: return copy(std::integral_constant<size_t, 8>());
    case 12: return copy(std::integral_constant<size_t, 12>());
    case 16: return copy(std::integral_constant<size_t, 16>());
    case 24: return copy(std::integral_constant<size_t, 24>());
    default: return copy(bytes);
  }
}

struct Columns {
  std::vector<Column> list;
  int64_t rows;

  explicit Columns(const RowTable& table) : rows(table.rows) {
    size_t offset = 0;
    for (size_t i = 0; i < table.arrays.size(); ++i) {
      size_t bytes = static_cast<size_t>(table.row_bytes(i));
      list.push_back({static_cast<char*>(table.arrays[i].data), bytes, offset});
      offset += bytes;
    }
  }

  bool has(int64_t row) const { return row >= 0 && row < rows; }

  // Prefetch a row before it is read or written; a row outside the array is harmless.
  void prefetch(int64_t row) const {
    for (const Column& column : list) __builtin_prefetch(column.data + row * static_cast<int64_t>(column.bytes));
  }

  void pack(const Rows& rows, char* out, size_t stride) const {
    for (const Column& column : list)
      with_width(column.bytes, [&](auto width) {
        for (int64_t i = 0; i < rows.count; ++i)
          std::memcpy(out + static_cast<size_t>(i) * stride + column.offset, column.row(rows.rows[i], width), width);
      });
  }

  void unpack(const char* in, size_t stride, const Rows& rows) const {
    for (const Column& column : list)
      with_width(column.bytes, [&](auto width) {
        for (int64_t i = 0; i < rows.count; ++i)
          std::memcpy(column.row(rows.rows[i], width), in + static_cast<size_t>(i) * stride + column.offset, width);
      });
  }

  void copy_together(const Columns& from, int64_t first, int64_t to, int64_t count) const {
    for (size_t c = 0; c < list.size(); ++c) {
      size_t bytes = list[c].bytes;
      std::memcpy(list[c].row(to, bytes), from.list[c].row(first, bytes), bytes * static_cast<size_t>(count));
    }
  }

  // Set rows from `begin` to `end` to the only row of `one`.
  void fill(const Parallel& parallel, const Columns& one, int64_t begin, int64_t end) const {
    for (size_t c = 0; c < list.size(); ++c)
      with_width(list[c].bytes, [&](auto width) {
        parallel.blocks(end - begin, move_grain, [&](int64_t from, int64_t to) {
          for (int64_t i = begin + from; i < begin + to; ++i)
            std::memcpy(list[c].row(i, width), one.list[c].data, width);
        });
      });
  }

  // Copy rows from `from`, whose columns have the same widths.
  void copy(const Columns& from, const Rows& sources, const Rows& rows) const {
    if (sources.consecutive() && rows.consecutive())
      return copy_together(from, sources.rows[0], rows.rows[0], rows.count);
    for (size_t c = 0; c < list.size(); ++c)
      with_width(list[c].bytes, [&](auto width) {
        const Column source = from.list[c], target = list[c];
        for (int64_t i = 0; i < rows.count; ++i)
          std::memcpy(target.row(rows.rows[i], width), source.row(sources.rows[i], width), width);
      });
  }
};

[[noreturn]] void refuse_rows() { throw Refusal("a row index is outside its arrays."); }

// Find the rows of an order from `first` on, at most up to `end`. Returns false if any is outside.
bool find_rows(const RowOrder& order, const Columns& columns, int64_t first, int64_t end, Rows& rows) {
  rows.count = std::min(end - first, Rows::capacity);
  const bool listed = order.count > 0 && first >= 0 && first + rows.count <= order.count;
  for (int64_t i = 0; i < rows.count; ++i) rows.rows[i] = listed ? order.rows[first + i] : order(first + i);
  bool inside = true;
  for (int64_t i = 0; i < rows.count; ++i) inside &= columns.has(rows.rows[i]);
  // The processor prefetches contiguous rows itself.
  if (rows.consecutive()) return inside;
  // Prefetch the next rows.
  for (int64_t i = first + rows.count; i < std::min(end, first + rows.count + Rows::capacity); ++i)
    columns.prefetch(order(i));
  return inside;
}

// Whether the rows of an order from `first` on are contiguous, as is the case if no row moves.
bool follow_each_other(const RowOrder& order, int64_t first, int64_t count) {
  if (order.count == 0 || count == 0) return true;
  if (first < 0 || first + count > order.count) return false;
  const auto* rows = reinterpret_cast<const uint32_t*>(order.rows + first);
  if (rows[count - 1] - rows[0] != static_cast<uint32_t>(count - 1)) return false;
  uint32_t differences = 0;
  for (int64_t i = 0; i < count; ++i) differences |= rows[i] ^ (rows[0] + static_cast<uint32_t>(i));
  return differences == 0;
}

// Call move(rows, place) for batches of rows of the segments; place: the position of the first row in their buffer.
template <typename Move>
void each_row(const Parallel& parallel, const SegmentsOfRows& segments, const Columns& columns, int64_t chunk,
              const Move& move) {
  std::atomic<bool> inside{true};
  for (int64_t s = 0; s < segments.number(); ++s) {
    int64_t start = segments.starts[s], count = std::min<int64_t>(chunk, segments.counts[s]);
    if (count <= 0) continue;
    parallel.blocks(count, move_grain, [&](int64_t begin, int64_t end) {
      Rows rows;
      for (int64_t j = begin; j < end; j += Rows::capacity) {
        if (!find_rows(segments.order, columns, start + j, start + end, rows))
          return inside.store(false, std::memory_order_relaxed);
        move(rows, static_cast<size_t>(s * chunk + j));
      }
    });
  }
  if (!inside.load()) refuse_rows();
}

void pack_segments(const Parallel& parallel, const PackSegments& in) {
  Columns columns(in.table);
  size_t stride = static_cast<size_t>(in.words()) * 4;
  char* out = reinterpret_cast<char*>(in.buffer.data);
  each_row(parallel, in.segments, columns, in.chunk(),
           [&](const Rows& rows, size_t place) { columns.pack(rows, out + place * stride, stride); });
}

void unpack_segments(const Parallel& parallel, const UnpackSegments& in) {
  Columns columns(in.table);
  size_t stride = static_cast<size_t>(in.words()) * 4;
  const char* packed = reinterpret_cast<const char*>(in.buffer.data);
  each_row(parallel, in.segments, columns, in.chunk(),
           [&](const Rows& rows, size_t place) { columns.unpack(packed + place * stride, stride, rows); });
}

// Place rows `begin` to `end`. Returns false if any is outside.
bool place_block(const PlaceRows& in, const Columns& from, const Columns& to, int64_t start, int64_t target,
                 int64_t begin, int64_t end) {
  if (follow_each_other(in.from_order, start + begin, end - begin) &&
      follow_each_other(in.to_order, target + begin, end - begin)) {
    const int64_t first = in.from_order(start + begin), place = in.to_order(target + begin), last = end - begin - 1;
    if (!from.has(first) || !from.has(first + last) || !to.has(place) || !to.has(place + last)) return false;
    to.copy_together(from, first, place, end - begin);
    return true;
  }
  Rows sources, rows;
  for (int64_t j = begin; j < end; j += Rows::capacity) {
    bool sources_exist = find_rows(in.from_order, from, start + j, start + end, sources);
    if (!find_rows(in.to_order, to, target + j, target + end, rows) || !sources_exist) return false;
    to.copy(from, sources, rows);
  }
  return true;
}

void place_rows(const Parallel& parallel, const PlaceRows& in) {
  Columns from(in.from), to(in.to), fill(in.fill);
  int64_t start = in.place[0], target = in.place[1], count = std::max(0, in.place[2]);
  int64_t first_filled = std::max(0, in.place[3]);
  // If the rows go to a single range, fill the rows outside it; otherwise fill all rows.
  bool together = target >= 0 && count <= to.rows - target && follow_each_other(in.to_order, target, count);
  int64_t first = together && count > 0 ? in.to_order(target) : 0, last = together ? first + count : 0;
  if (!to.has(first) || last > to.rows) first = last = 0;
  to.fill(parallel, fill, first_filled, first);
  to.fill(parallel, fill, std::max(first_filled, last), to.rows);
  std::atomic<bool> inside{true};
  parallel.blocks(count, move_grain, [&](int64_t begin, int64_t end) {
    if (!place_block(in, from, to, start, target, begin, end)) inside.store(false, std::memory_order_relaxed);
  });
  if (!inside.load()) refuse_rows();
}

}  // namespace

JZTREE_PLAIN_KERNEL(pack_segments, PackSegments);
JZTREE_PLAIN_KERNEL(unpack_segments, UnpackSegments);
JZTREE_PLAIN_KERNEL(place_rows, PlaceRows);

}  // namespace jztree
