#include "segments.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/cpu/context.h"

namespace jztree {
namespace {

constexpr int64_t move_grain = 1 << 13;

// An array of rows, of which `offset` is the place in the packed row.
struct Column {
  char* data;
  size_t bytes, offset;
};

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

[[noreturn]] void refuse_rows() { throw Refusal("rows were to be moved to or from places outside their arrays."); }

// Calls move(row, place) for each row of the segments and its place in their buffer.
template <typename Move>
void each_row(const Parallel& parallel, const SegmentsOfRows& segments, const Columns& columns, int64_t chunk,
              const Move& move) {
  std::atomic<bool> inside{true};
  for (int64_t s = 0; s < segments.number(); ++s) {
    int64_t start = segments.starts[s], count = std::min<int64_t>(chunk, segments.counts[s]);
    if (count <= 0) continue;
    parallel.blocks(count, move_grain, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) {
        columns.prefetch(segments.order(start + std::min(j + prefetch_distance, end - 1)));
        int64_t row = segments.order(start + j);
        if (columns.has(row)) {
          move(row, static_cast<size_t>(s * chunk + j));
        } else {
          inside.store(false, std::memory_order_relaxed);
        }
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
           [&](int64_t row, size_t place) { columns.pack(row, out + place * stride); });
}

void unpack_segments(const Parallel& parallel, const UnpackSegments& in) {
  Columns columns(in.table);
  size_t stride = static_cast<size_t>(in.words()) * 4;
  const char* packed = reinterpret_cast<const char*>(in.buffer.data);
  each_row(parallel, in.segments, columns, in.chunk(),
           [&](int64_t row, size_t place) { columns.unpack(packed + place * stride, row); });
}

void place_rows(const Parallel& parallel, const PlaceRows& in) {
  Columns from(in.from), to(in.to);
  int64_t start = in.place[0], target = in.place[1], count = in.place[2];
  if (count <= 0) return;
  std::atomic<bool> inside{true};
  parallel.blocks(count, move_grain, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      int64_t ahead = std::min(j + prefetch_distance, end - 1);
      from.prefetch(in.from_order(start + ahead));
      to.prefetch(in.to_order(target + ahead));
      int64_t row = in.from_order(start + j), out = in.to_order(target + j);
      if (from.has(row) && to.has(out)) {
        to.copy(from, row, out);
      } else {
        inside.store(false, std::memory_order_relaxed);
      }
    }
  });
  if (!inside.load()) refuse_rows();
}

}  // namespace

JZTREE_PLAIN_KERNEL(pack_segments, PackSegments);
JZTREE_PLAIN_KERNEL(unpack_segments, UnpackSegments);
JZTREE_PLAIN_KERNEL(place_rows, PlaceRows);

}  // namespace jztree
