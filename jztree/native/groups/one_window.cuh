// One of the windows in which owners of groups receive parts; its number is on the GPU.
#pragma once

#include <cstdint>

#include "common/cuda/queue.cuh"
#include "grouping.h"

namespace jztree {

// The windows into which the rows of all ranks are cut, and one of them.
struct OneWindow {
  int64_t rows;
  const int32_t *number, *windows;

  __device__ Windows cut() const { return {rows, *windows > 1 ? *windows : 1}; }
  __device__ int64_t begin() const { return cut().begin(*number); }
  __device__ int64_t end() const { return cut().begin(*number + 1); }
  __device__ bool holds(int64_t row) const { return row >= 0 && row < rows && cut().of(row) == *number; }
};

}  // namespace jztree
