// The grid of the Morton keys on the GPU: its domain and its box are known there only.
#pragma once

#include "common/morton.h"
#include "arguments.cuh"
#include "queue.cuh"

namespace jztree {

template <int D, typename T>
__global__ void make_grid(const T* lower, const T* upper, Lengths box, KeyGrid<D>* grid) {
  if (thread_index() > 0) return;
  double period[D];
  for (int d = 0; d < D; ++d) period[d] = box[d];
  *grid = KeyGrid<D>(lower, upper, period);
}

// The grid in the GPU's memory, for kernels that come after on the queue.
template <int D, typename T>
const KeyGrid<D>* device_grid(Queue& queue, const ffi::AnyBuffer& lower, const ffi::AnyBuffer& upper,
                              const Lengths& box) {
  KeyGrid<D>* grid = queue.scratch<KeyGrid<D>>(1);
  queue.launch(1, 1, 0, make_grid<D, T>, lower.typed_data<T>(), upper.typed_data<T>(), box, grid);
  return grid;
}

template <int D, typename T>
__device__ bool is_finite_row(const T* x) {
  bool finite = true;
  for (int d = 0; d < D; ++d) finite &= isfinite(x[d]);
  return finite;
}

// Where among the keys of the rows of `sorted` the key belongs: the first row that is not before it, or with `right`
// the first after it.
template <int D, typename T>
__device__ int64_t key_place(const KeyGrid<D>& grid, const T* sorted, int64_t count, const MortonKey& key, bool right) {
  int64_t first = 0, last = count;
  while (first < last) {
    int64_t middle = (first + last) / 2;
    MortonKey other = Morton<D>::key(grid, sorted + middle * D);
    bool before = right ? !(key < other) : other < key;
    (before ? first : last) = before ? middle + 1 : middle;
  }
  return first;
}

// How many rows are finite, if all others are behind them.
template <int D, typename T>
__device__ int64_t finite_rows(const T* sorted, int64_t num) {
  int64_t first = 0, last = num;
  while (first < last) {
    int64_t middle = (first + last) / 2;
    bool finite = is_finite_row<D>(sorted + middle * D);
    (finite ? first : last) = finite ? middle + 1 : middle;
  }
  return first;
}

}  // namespace jztree
