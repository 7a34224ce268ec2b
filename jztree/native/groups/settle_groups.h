// Decides which groups of a window of this rank's rows are listed, and the places of their parts (grouping.h).
#pragma once

#include "common/arguments.h"
#include "grouping.h"

namespace jztree {

// An owner's totals so far: the number of particles in its listed groups, and in its largest group.
struct Tally {
  static constexpr int64_t words = 4;

  uint64_t listed, largest;
};

struct SettleGroups {
  const int32_t* rank;
  Array<const int32_t> root_rank;  // (n,)
  const int32_t* count;            // (n,)
  Array<const int32_t> reports;    // (ranks, chunk, 2): (row of the root, particles), received from all ranks
  const int32_t *window, *windows;
  const uint32_t* old_tally;
  uint32_t* answers;  // (ranks, chunk, 2), the places of the received parts
  uint32_t* places;   // (n, 2), continued: adds the places of this rank's own parts of the window's groups
  uint32_t* tally;
  int64_t npart_min;

  explicit SettleGroups(Arguments& in)
      : rank(in.number("rank")),
        root_rank(in.argument<int32_t>("root_rank", {any})),
        count(in.argument<int32_t>("count", {rows()})),
        reports(in.argument<int32_t>("reports", {any, any, 2})),
        window(in.number("window")),
        windows(in.number("windows")),
        old_tally(in.argument<uint32_t>("old_tally", {Tally::words})),
        answers(in.result<uint32_t>("answers", {ranks(), chunk(), 2})),
        places(in.continued<uint32_t>("places", {rows(), 2})),
        tally(in.result<uint32_t>("tally", {Tally::words})),
        npart_min(in.attributes().integer("npart_min")) {}

  int64_t rows() const { return root_rank.rows(); }
  int64_t ranks() const { return reports.dims[0]; }
  int64_t chunk() const { return reports.dims[1]; }
};

}  // namespace jztree
