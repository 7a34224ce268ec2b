// For every query, finds the first row of the z-ordered particles whose key is not below the query's.
#pragma once

#include "common/key_arguments.h"
#include "common/partition.h"
#include "common/scale.h"

namespace jztree {

template <int D, typename T>
struct KeySearch : Positions<D, T> {  // (n, dims), not padded, because a search reads few rows
  Array<const T> query;               // (q, dims)
  KeyDomain<D, T> keys;
  int32_t* row;  // (q,)
  bool right;    // find the first row whose key is above the query's instead

  explicit KeySearch(Arguments& in)
      : Positions<D, T>(in, "", in.given_width(D)),
        query(in.argument<T>("query", {any, in.given_width(D)})),
        keys(in),
        row(in.result<int32_t>("row", {query.rows()})),
        right(in.attributes().flag("right")) {}
};

// The number of finite rows, if all non-finite rows follow them.
template <int D, typename T>
JZTREE_BOTH int64_t finite_rows(const KeyShape<D>& shape, const T* sorted, int64_t num) {
  return partition_point(0, num, [&](int64_t row) { return is_finite_row<D>(sorted + row * shape.dims, shape.dims); });
}

// The place of the key among the keys of `count` rows: the first row that is not before it, or with `right` the first
// row after it.
template <int D, typename T>
JZTREE_BOTH int64_t key_place(const KeyGrid<D>& grid, const T* sorted, int64_t count, const MortonKey& key,
                              bool right) {
  return partition_point(0, count, [&](int64_t row) {
    const MortonKey other = Morton<D>::key(grid, sorted + row * grid.dims);
    return right ? !(key < other) : other < key;
  });
}

}  // namespace jztree
