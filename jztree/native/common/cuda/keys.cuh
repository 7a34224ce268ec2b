// The grid of the Morton keys on the GPU: its domain and its box are only known there.
#pragma once

#include "common/key_arguments.h"
#include "queue.cuh"

namespace jztree {

template <int D, typename T>
__global__ void make_grid(KeyDomain<D, T> domain, KeyGrid<D>* grid) {
  if (thread_index() == 0) *grid = domain.grid();
}

// The grid in the GPU's memory, for later kernels on the queue.
template <int D, typename T>
const KeyGrid<D>* device_grid(Queue& queue, const KeyDomain<D, T>& domain) {
  KeyGrid<D>* grid = queue.scratch<KeyGrid<D>>(1);
  queue.launch(1, 1, 0, make_grid<D, T>, domain, grid);
  return grid;
}

}  // namespace jztree
