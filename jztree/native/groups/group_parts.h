// The parts of groups on a rank, and the messages about them to the owners (grouping.h).
#pragma once

#include "grouping.h"

namespace jztree {

// chunk: the capacity for parts when each rank sends each other rank its parts in one window of its rows.
struct GroupParts : RootedRows {
  int32_t* label;      // (n,), the first row here of the group of each row
  int32_t* count;      // (n,), size of each part, at its first row
  int32_t* parts;      // (n,), parts that other ranks own, in the order of their roots
  int32_t* num_parts;  // number of `parts`
  int32_t* windows;    // the smallest sufficient number of windows over the rows of each rank
  int32_t* bad_row;    // the first row with an invalid root, or -1; all other results are meaningless if there is one
  int64_t chunk;

  explicit GroupParts(Arguments& in)
      : RootedRows(in),
        label(in.result<int32_t>("label", {rows()})),
        count(in.result<int32_t>("count", {rows()})),
        parts(in.result<int32_t>("parts", {rows()})),
        num_parts(in.result<int32_t>("num_parts", {})),
        windows(in.result<int32_t>("windows", {})),
        bad_row(in.result<int32_t>("bad_row", {})),
        chunk(in.attributes().integer("chunk")) {
    if (chunk < 1) throw Refusal("chunk must be at least 1.");
  }
};

// buffer[r, j] = (row of the root, particles) of part starts[r] + j, one of the counts[r] parts with a root on rank r
// in this window; (-1, 0) in unused entries.
struct PackParts {
  Array<const int32_t> root_rank;           // (n,)
  const int32_t *root_row, *count, *parts;  // (n,)
  Count num_parts;
  const int32_t *window, *windows;
  Array<int32_t> buffer;     // (ranks, chunk, 2)
  int32_t *starts, *counts;  // (ranks,)

  explicit PackParts(Arguments& in)
      : root_rank(in.argument<int32_t>("root_rank", {any})),
        root_row(in.argument<int32_t>("root_row", {rows()})),
        count(in.argument<int32_t>("count", {rows()})),
        parts(in.argument<int32_t>("parts", {rows()})),
        num_parts(in.count("num_parts", rows())),
        window(in.number("window")),
        windows(in.number("windows")),
        buffer(in.result<int32_t>("buffer", {any, any, 2})),
        starts(in.result<int32_t>("starts", {ranks()})),
        counts(in.result<int32_t>("counts", {ranks()})) {}

  int64_t rows() const { return root_rank.rows(); }
  int64_t ranks() const { return buffer.dims[0]; }
  int64_t chunk() const { return buffer.dims[1]; }
  Roots roots() const { return {root_rank, root_row}; }
};

}  // namespace jztree
