// The graph of density peaks, as lists of neighbours. Two rows are neighbours if one is in the list of the other. Over
// ranks, a rank's own particles have lists, and its ghosts, in the rows before and after them, have none.
#pragma once

#include <cstdint>

#include "common/arguments.h"
#include "common/portable.h"

namespace jztree {

// Host and GPU use the same struct.
struct RankedGraph {
  const int32_t* neighbours;  // (lists, k); a list ends at the first number that is not a row
  int64_t lists, k;           // its shape
  const int32_t* first;       // the row of the first list
  const int32_t* rank;        // (rows,); the denser of two rows has the smaller rank, and no two rows have the same
  int64_t rows;               // including rows without a particle
  Count num;

  explicit RankedGraph(Arguments& in) {
    const auto list = in.argument<int32_t>("neighbours", {any, any});
    neighbours = list, lists = list.rows(), k = list.dims[1];
    first = in.number("first");
    const auto ranks = in.argument<int32_t>("rank", {any});
    rank = ranks, rows = ranks.rows();
    num = in.count("num", rows);
  }

  // The list of a row; null if it has none.
  JZTREE_BOTH const int32_t* list_of(int64_t row) const {
    const int64_t list = row - *first;
    return list >= 0 && list < lists ? neighbours + list * k : nullptr;
  }

  // Call work(neighbour) for the neighbours in the list of a row.
  template <typename Work>
  JZTREE_BOTH void each_near(int64_t row, const Work& work) const {
    const int32_t* list = list_of(row);
    if (!list) return;
    const auto particles = static_cast<uint32_t>(num());
    for (int64_t i = 0; i < k && static_cast<uint32_t>(list[i]) < particles; ++i) work(list[i]);
  }
};

}  // namespace jztree
