// Sorts the rows below `num` stably by their ranks. Rows with an invalid rank are left out. Entries after the last row
// are meaningless.
#pragma once

#include "common/arguments.h"

namespace jztree {

struct GroupByRank {
  Array<const int32_t> rank;  // (m,)
  Count num;
  int32_t* order;         // (m,)
  Array<int32_t> counts;  // (ranks,)

  explicit GroupByRank(Arguments& in)
      : rank(in.argument<int32_t>("rank", {any})),
        num(in.count("num", rank.rows())),
        order(in.result<int32_t>("order", {rank.rows()})),
        counts(in.result<int32_t>("counts", {any})) {}

  int64_t rows() const { return rank.rows(); }
  int64_t ranks() const { return counts.rows(); }
};

}  // namespace jztree
