#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/keys.cuh"
#include "common/cuda/loads.cuh"
#include "common/scale.h"
#include "is_before.h"
#include "is_sorted.h"

namespace jztree {
namespace {

// Whether a row sorts before the previous one. First halves of keys nearly always decide.
template <int D, typename T>
__device__ bool falls(const KeyGrid<D>& grid, const T* x) {
  const uint64_t previous = Morton<D>::high(grid, x - D), key = Morton<D>::high(grid, x);
  return previous >= key && (previous > key || is_before<D>(grid, x, x - D));
}

template <int D, typename T>
__global__ void look_at_rows(const T* pos, Count num, const KeyGrid<D>* grid, int32_t* sorted) {
  int64_t i = thread_index();
  // A thread also stops if it sees that another thread has found a descent.
  if (i >= num() || load_outdated(sorted) == 0) return;
  const T* x = pos + i * D;
  if (!is_finite_row<D>(x) || (i > 0 && falls<D>(*grid, x))) store_relaxed(sorted, 0);
}

template <int D, typename T>
void is_sorted(Queue& queue, const IsSorted<D, T>& in) {
  const KeyGrid<D>* grid = device_grid(queue, in.keys);
  // Setting every byte to 1 gives a non-zero number.
  queue.fill_bytes(in.sorted, 1, 1);
  queue.launch_over(in.pos.rows(), look_at_rows<D, T>, in.pos, in.num, grid, in.sorted);
}

}  // namespace

JZTREE_KERNEL(is_sorted, IsSorted);

}  // namespace jztree
