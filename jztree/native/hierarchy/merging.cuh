// Combines values of rows into a value for each cluster, from the rows up.
#pragma once

#include <cstdint>

namespace jztree {

// Of the children of a cluster, the second to arrive continues. parent: [cluster], the edge that joins it to another,
// or -1; arrived: [edge], number of children, 0 at first; combine(combined, value): does it atomically.
template <typename Combine>
__device__ void combine_upwards(const int32_t* parent, int64_t rows, int64_t row, int32_t value, int32_t* combined,
                                int32_t* arrived, const Combine& combine) {
  for (int32_t edge = parent[row]; edge >= 0; edge = parent[rows + edge]) {
    combine(combined + edge, value);
    __threadfence();
    if (atomicAdd(arrived + edge, 1) == 0) return;
    value = atomicAdd(combined + edge, 0);
  }
}

}  // namespace jztree
