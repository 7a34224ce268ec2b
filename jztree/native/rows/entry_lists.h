// The list of each entry, for consecutive entries of lists that are stored one after the other.
#pragma once

#include "common/arguments.h"
#include "common/partition.h"

namespace jztree {

// List i consists of the entries from splits[i] to splits[i + 1]; splits[0] is 0. lists[j] is the list of entry
// start + j, or the number of lists for entries after the last list.
struct EntryLists {
  Array<const int32_t> splits;  // (lists + 1,), ascending
  const int32_t* start;
  Array<int32_t> lists;  // (entries,)

  explicit EntryLists(Arguments& in)
      : splits(in.argument<int32_t>("splits", {any})),
        start(in.number("start")),
        lists(in.result<int32_t>("lists", {any})) {
    in.expect(splits.rows() > 0, splits, 1, "splits", "of at least one number");
  }

  int64_t number() const { return splits.rows() - 1; }
};

// The list that contains an entry, for entries from 0 on; `number` for entries after the last list.
JZTREE_BOTH inline int64_t list_of_entry(const int32_t* splits, int64_t number, int64_t entry) {
  return partition_point(0, number, [&](int64_t list) { return splits[list + 1] <= entry; });
}

}  // namespace jztree
