// Lists all pairs of a query and an image of a source within the query's radius. In a periodic box, every image of a
// source is a separate partner.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "within/lists_within.h"

namespace jztree {

// The number, or 0 for -0: CPU compilers may choose the sign of 0, so bits decide.
template <typename T>
JZTREE_BOTH inline T unsigned_zero(T x) {
  std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t> bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits << 1 == 0 ? T{0} : x;
}

// The rows of sources are their names.
template <int D, typename T>
struct PairsWithin : ListsWithin<D, T> {
  const int32_t* query_names;  // (q,), the name of each z-ordered query; null: its output row
  Array<int32_t> query;        // (capacity,), names of queries; -1 after the last pair
  int32_t* index;              // (capacity,), names of sources; -1 after the last pair
  // The next three are null if they are not requested.
  int32_t* shift;  // (capacity, D), box lengths to add to the source; 0 after the last pair
  T* vector;       // (capacity, D), from the query to the shifted source; 0 after the last pair
  T* distance;     // (capacity,), present if there are vectors; infinite after the last pair
  bool one_set;    // names are from one set; a particle pairs with its images, but not with itself
  bool half;       // list only one of each pair in such a set and its mirror image

  explicit PairsWithin(Arguments& in)
      : ListsWithin<D, T>(in, "source_names"),
        query_names(in.optional<int32_t>("query_names", {this->q()})),
        query(in.result<int32_t>("query", {any})),
        index(in.result<int32_t>("index", {room()})),
        shift(in.result_if<int32_t>(in.attributes().flag("shifts"), "shift", room(), D)),
        vector(in.result_if<T>(in.attributes().flag("vectors"), "vector", room(), D)),
        distance(in.result_if<T>(in.attributes().flag("vectors"), "distance", room())),
        one_set(in.attributes().flag("same")),
        half(in.attributes().flag("half")) {}

  int64_t room() const { return query.dims[0]; }
  int64_t query_name(int64_t query) const { return query_names ? query_names[query] : this->queries.row_of(query); }
};

}  // namespace jztree
