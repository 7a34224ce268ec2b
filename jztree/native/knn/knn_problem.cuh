// What a search is asked, and where its answers go.
#pragma once

#include <cstdint>

#include "knn_walk.cuh"

namespace jztree {

// Queries that a search in float32 cannot answer: groups of 32 that follow each other, and which of them.
struct Unanswered {
  int32_t* count = nullptr;
  uint32_t *group = nullptr, *lanes = nullptr;

  __device__ void add(int64_t which, uint32_t of_it) const {
    int32_t place = atomicAdd(count, 1);
    group[place] = static_cast<uint32_t>(which);
    lanes[place] = of_it;
  }
};

template <typename From>
struct Problem {
  TreeView<From> sources, queries;
  bool self;                   // the sources are the queries, row by row
  const int32_t* own_offset;   // query i is source i + own_offset; negative: queries are no sources
  bool others;                 // queries that are sources are none of their own neighbours
  const int32_t* source_rows;  // reported row of each z-ordered source; null: its place
  const int32_t* query_rows;   // output row of each z-ordered query; null: its place
  const int32_t* chosen;       // the queries to be answered, null: all; of the others, nothing is written
  const int64_t* chosen_count;
  int64_t most;  // of them
  From* radius;  // (q, k)
  int32_t* index;
  int64_t k;
  Lengths limit;  // in the order of output rows, one for all, or none

  __device__ int64_t count() const { return chosen ? *chosen_count : most; }
  __device__ int64_t query(int64_t place) const { return chosen ? chosen[place] : place; }
  // The query's own row among the sources, -1 if there is none.
  __device__ int64_t own_row(int64_t query) const {
    if (self) return query;
    int64_t offset = own_offset[0], row = query + offset;
    return offset >= 0 && row < sources.num() ? row : -1;
  }

  // Whether a query with that own row is its own first neighbour.
  __device__ bool own_first(int64_t own) const { return own >= 0 && !others; }

  // Where a query's answers go.
  __device__ int64_t out_row(int64_t query) const { return query_rows ? query_rows[query] : query; }

  // own: the query's own row.
  template <typename T>
  __device__ __forceinline__ void write(int64_t out, int64_t own, const Candidate<T>& found, T unit) const {
    radius[out] = static_cast<From>(std::sqrt(found.distance2()) * unit);
    int64_t source = found.row_plus_one() == 0 ? own : static_cast<int64_t>(found.row_plus_one()) - 1;
    index[out] = found.row_plus_one() == no_row ? -1 : source_rows ? source_rows[source] : static_cast<int32_t>(source);
  }
};

// Squared distances below this have lost digits in float32: well above the smallest normal number, so that the squares
// of all dimensions have theirs. In float64 the scaled squares cover every ratio of lengths that positions can have in
// practice.
template <typename T>
constexpr T smallest_precise =
    sizeof(T) == sizeof(float) ? std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon() : T{0};

// Whether a candidate's squared distance is that of coincident points or large enough to have all its digits. Small
// coordinates of a wide set become 0 when they are scaled down, so those that were given say whether points coincide.
template <int W, typename From, typename T>
__device__ __forceinline__ bool is_precise(const Problem<From>& problem, const Staging<W, From, T>& staging,
                                           const Candidate<T>& found, int64_t query) {
  if (found.distance2() >= smallest_precise<T> || found.row_plus_one() == 0) return true;
  if (found.distance2() > 0) return false;
  From source[W], asked[W];
  staging.wrapped(problem.sources, found.row_plus_one() - 1, source);
  staging.wrapped(problem.queries, static_cast<uint32_t>(query), asked);
  bool same = true;
#pragma unroll
  for (int d = 0; d < W; ++d) same &= source[d] == asked[d];
  return same;
}

}  // namespace jztree
