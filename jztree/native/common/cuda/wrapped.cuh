// Whether any particle is outside its periodic box.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/morton.h"
#include "loads.cuh"
#include "queue.cuh"
#include "tree.cuh"

namespace jztree {

// All threads that find one write the same value.
template <int D, typename T>
__global__ void find_wrapped(const T* pos, Count num, Lengths box, int32_t* wrapped) {
  double period[D];
  bool periodic = false, found = false;
  for (int d = 0; d < D; ++d) {
    period[d] = box[d];
    periodic |= period[d] > 0;
  }
  if (!periodic) return;
  int64_t count = num(), step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t row = thread_index(); row < count; row += step)
    for (int d = 0; d < D; ++d) found |= wrap(pos[row * D + d], period[d]) != pos[row * D + d];
  if (found) store_relaxed(wrapped, 1);
}

// 1 if there is one in any of the hierarchies, otherwise 0.
template <int D, typename T, typename... More>
const int32_t* any_wrapped(Queue& queue, const Lengths& box, const DeviceTree<D, T>& tree, const More&... more) {
  constexpr int64_t most_blocks = 2048;
  auto* wrapped = queue.scratch<int32_t>(1);
  queue.fill_bytes(wrapped, 0, 1);
  for (const DeviceTree<D, T>* looked : {&tree, &more...}) {
    int64_t blocks = std::min<int64_t>(most_blocks, (looked->num.rows + 255) / 256);
    queue.launch(blocks, 256, 0, find_wrapped<D, T>, looked->pos, looked->num, box, wrapped);
  }
  return wrapped;
}

}  // namespace jztree
