// Rows that are sent between ranks: arrays of any types are packed into one buffer, and unpacked at their new places.
//
// A row consists of the bytes of its part of every array, one after the other, padded to whole words of 32 bits. A
// segment is a run of rows to or from one rank.
#pragma once

#include <string>
#include <vector>

#include "common/arguments.h"

namespace jztree {

// A list of rows, or all rows in order if it is empty; -1 outside.
struct RowOrder {
  const int32_t* rows;
  int64_t count;

  RowOrder(Arguments& in, const char* name) : RowOrder(in.argument<int32_t>(name, {any})) {}
  explicit RowOrder(const Array<const int32_t>& list) : rows(list), count(list.rows()) {}

  int64_t length(int64_t all) const { return count == 0 ? all : count; }
  JZTREE_BOTH int64_t operator()(int64_t i) const { return count == 0 ? i : i >= 0 && i < count ? rows[i] : -1; }
};

// The contents of a buffer of segments: `counts` rows of an order, starting at `starts`, at most a chunk each.
struct SegmentsOfRows {
  RowOrder order;
  Array<const int32_t> starts;
  const int32_t* counts;

  explicit SegmentsOfRows(Arguments& in)
      : order(in, "order"),
        starts(in.argument<int32_t>("starts", {any})),
        counts(in.argument<int32_t>("counts", {starts.rows()})) {}

  int64_t number() const { return starts.rows(); }
};

// The arrays that form the rows; all have the same number of rows.
struct RowTable {
  std::vector<Buffer> arrays;
  int64_t rows = 0;

  void add(const Arguments& in, const Buffer& array) {
    std::string name = "array " + std::to_string(arrays.size());
    in.expect(array.rank > 0, array, name, "an array with rows");
    if (arrays.empty()) rows = array.rows();
    in.expect(array.rows() == rows, array, name, "of " + std::to_string(rows) + " rows, like the arrays before it");
    arrays.push_back(array);
  }

  // Of array i.
  int64_t row_bytes(size_t i) const { return rows == 0 ? 0 : arrays[i].bytes() / rows; }
  int64_t row_bytes() const {
    int64_t sum = 0;
    for (size_t i = 0; i < arrays.size(); ++i) sum += row_bytes(i);
    return sum;
  }
};

// Check that the buffer has enough capacity for its segments and for these rows.
template <typename Words>
void expect_room(const Arguments& in, const Array<Words>& buffer, const RowTable& table) {
  in.expect(buffer.dims[0] * buffer.dims[1] < int64_t{0xffffffff}, buffer, 3, "buffer", "of fewer than 2**32 - 1 rows");
  in.expect(table.row_bytes() <= 4 * buffer.dims[2], buffer, 3, "buffer",
            "of rows with at least " + std::to_string(table.row_bytes()) + " bytes");
}

// buffer[s, j] = row order[starts[s] + j] of the arrays, for j below counts[s].
struct PackSegments {
  SegmentsOfRows segments;
  RowTable table;
  Array<uint32_t> buffer;  // (segments, chunk, words)

  explicit PackSegments(Arguments& in)
      : segments(in), buffer(in.result<uint32_t>("buffer", {segments.number(), any, any})) {
    while (in.arguments_left() > 0) table.add(in, in.any_argument("arrays"));
    expect_room(in, buffer, table);
  }

  int64_t chunk() const { return buffer.dims[1]; }
  int64_t words() const { return buffer.dims[2]; }
};

// Row order[starts[s] + j] of the arrays = buffer[s, j], for j below counts[s]; all other rows stay unchanged.
struct UnpackSegments {
  Array<const uint32_t> buffer;  // (segments, chunk, words)
  SegmentsOfRows segments;
  RowTable table;  // continued

  explicit UnpackSegments(Arguments& in) : buffer(in.argument<uint32_t>("buffer", {any, any, any})), segments(in) {
    in.expect(segments.number() == buffer.dims[0], segments.starts, 1, "starts", "of the length of buffer");
    while (in.results_left() > 0) table.add(in, in.any_continued("arrays"));
    expect_room(in, buffer, table);
  }

  int64_t chunk() const { return buffer.dims[1]; }
  int64_t words() const { return buffer.dims[2]; }
};

// Row to_order[target + j] of one table = row from_order[start + j] of another, for j below count. All other rows from
// `first_filled` on are set to the only row of a third table. Other kernels write the rows before `first_filled`.
struct PlaceRows {
  RowOrder from_order, to_order;
  const int32_t* place;  // start, target, count and first_filled
  RowTable from, to, fill;

  explicit PlaceRows(Arguments& in)
      : from_order(in, "from_order"), to_order(in, "to_order"), place(in.argument<int32_t>("place", {4})) {
    const size_t arrays = in.results_left();
    for (size_t i = 0; i < arrays; ++i) fill.add(in, in.any_argument("fill"));
    for (size_t i = 0; i < arrays; ++i) from.add(in, in.any_argument("source"));
    for (size_t i = 0; i < arrays; ++i) to.add(in, in.any_result("arrays"));
    if (to.rows == 0) return;
    for (size_t i = 0; i < arrays; ++i) {
      const std::string wanted = "of rows with " + std::to_string(to.row_bytes(i)) + " bytes";
      in.expect(fill.rows == 1 && fill.row_bytes(i) == to.row_bytes(i), fill.arrays[i], "fill " + std::to_string(i),
                "one row, " + wanted);
      in.expect(from.rows == 0 || from.row_bytes(i) == to.row_bytes(i), from.arrays[i], "source " + std::to_string(i),
                wanted);
    }
  }
};

}  // namespace jztree
