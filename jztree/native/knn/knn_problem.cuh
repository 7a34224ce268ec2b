// The input of a search, and the destination of its answers.
#pragma once

#include <cstdint>

#include "knn_walk.cuh"

namespace jztree {

// Queries that a search in float32 cannot answer: those of a group of consecutive queries, one bit each. first: the
// place of the first query of a group.
struct Unanswered {
  int32_t* count = nullptr;
  uint32_t *first = nullptr, *lanes = nullptr;

  __device__ void add(int64_t first_of_group, uint32_t of_group) const {
    int32_t place = atomicAdd(count, 1);
    first[place] = static_cast<uint32_t>(first_of_group);
    lanes[place] = of_group;
  }
};

template <typename From>
struct Problem {
  TreeView<From> sources, queries;
  bool self;                   // the sources are the queries, row by row
  const int32_t* own_offset;   // query i is source i + own_offset; negative: no query is a source
  bool exclude_self;           // queries that are sources are not their own neighbours
  const int32_t* source_rows;  // reported row of each z-ordered source; null: its index
  const int32_t* query_rows;   // output row of each z-ordered query; null: its index
  const int32_t* query_list;   // the queries to answer, null: all; nothing is written for the others
  const int64_t* query_list_count;
  int64_t max_queries;  // their largest number
  From* radius;         // (q, k), written at the end (knn_report.cuh)
  int32_t* index;       // (q, k), until then the neighbours' z-ordered rows
  int64_t k;
  Lengths limit;           // in output order, a single one for all, or none
  const int32_t* wrapped;  // not 0: a position is outside its periodic box

  __device__ int64_t count() const { return query_list ? *query_list_count : max_queries; }
  __device__ int64_t query(int64_t place) const { return query_list ? query_list[place] : place; }
  // The query's own row among the sources, or -1 if the query is not a source.
  __device__ int64_t own_row(int64_t query) const {
    if (self) return query;
    int64_t offset = own_offset[0], row = query + offset;
    return offset >= 0 && row < sources.num() ? row : -1;
  }

  // Whether a query with that own row is its own first neighbour.
  __device__ bool own_first(int64_t self_row) const { return self_row >= 0 && !exclude_self; }

  // The output row of a query.
  __device__ int64_t out_row(int64_t query) const { return query_rows ? query_rows[query] : query; }

  // self_row: the query's own row.
  __device__ __forceinline__ void write(int64_t out, int64_t self_row, uint32_t row_plus_one) const {
    const int64_t source = row_plus_one == 0 ? self_row : static_cast<int64_t>(row_plus_one) - 1;
    index[out] = row_plus_one == no_row ? -1 : static_cast<int32_t>(source);
  }
};

// Whether two rows are at the same place. Compares the input positions, because small coordinates of a wide set become
// 0 when they are scaled down.
template <int W, typename From, typename T>
JZTREE_APART bool same_place(const Problem<From>& problem, const Scale<W, T>& scale, int64_t source, int64_t query) {
  const int dims = problem.sources.dims;
  const From *a = problem.sources.pos + source * dims, *b = problem.queries.pos + query * dims;
  bool coincide = true;
  for (int d = 0; d < dims; ++d) coincide &= same_in_box(a[d], b[d], scale.raw_period[d]);
  return coincide;
}

// Whether a candidate's squared distance is that of coincident points or large enough to have all its digits.
template <int W, typename From, typename T>
__device__ __forceinline__ bool is_precise(const Problem<From>& problem, const Scale<W, T>& scale,
                                           const Candidate<T>& found, int64_t query) {
  if (found.distance2() >= scale.precise2 || found.row_plus_one() == 0) return true;
  return !(found.distance2() > 0) && same_place(problem, scale, found.row_plus_one() - 1, query);
}

}  // namespace jztree
