// A window for which owners of groups receive parts (grouping.h). Its number is in GPU memory.
#pragma once

#include <cstdint>

#include "common/cuda/queue.cuh"
#include "grouping.h"

namespace jztree {

// The division of rows into windows, and the current window.
struct OneWindow {
  int64_t rows;
  const int32_t *number, *windows;

  __device__ Windows cut() const { return {rows, *windows > 1 ? *windows : 1}; }
  __device__ int64_t begin() const { return cut().begin(*number); }
  __device__ int64_t end() const { return cut().begin(*number + 1); }
  __device__ bool holds(int64_t row) const { return row >= 0 && row < rows && cut().of(row) == *number; }
};

}  // namespace jztree
