// Lists the sources within a radius of every query.
#pragma once

#include "lists_within.h"

namespace jztree {

template <int D, typename T>
struct NeighboursWithin : ListsWithin<D, T> {
  Array<int32_t> index;  // (capacity,), nearest first if `sorted`, otherwise in source order; -1 after the last
  T* distance;           // (capacity,); infinite after the last
  bool sorted;

  explicit NeighboursWithin(Arguments& in)
      : ListsWithin<D, T>(in, "source_rows"),
        index(in.result<int32_t>("index", {any})),
        distance(in.result<T>("distance", {room()})),
        sorted(in.attributes().flag("sorted")) {}

  int64_t room() const { return index.dims[0]; }
};

}  // namespace jztree
