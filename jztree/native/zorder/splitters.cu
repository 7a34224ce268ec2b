// Searches wait for memory, and there are few of them. So a block takes a splitter: two warps find its lowest and its
// highest way to go on, 32 places at a time, and then each thread its own way between these, which from the second byte
// on are close to each other.

#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/keys.cuh"
#include "common/cuda/warp_search.cuh"
#include "splitters.h"

namespace jztree {
namespace {

template <int D, typename T>
struct SortedRows {
  const T* pos;
  Count num;
  const KeyGrid<D>* grid;

  __device__ bool before(int64_t row, const Splitter<D>& splitter, bool equal_too) const {
    return OrderWords<D>::before(*grid, pos + row * D, splitter.words, equal_too);
  }

  // The first of the rows [first, last) that is not before the splitter (above: is above it), found by a warp.
  __device__ int64_t find(int64_t first, int64_t last, const Splitter<D>& splitter, bool above) const {
    return warp_search(first, last, [&](int64_t row) { return before(row, splitter, above); });
  }

  // The same, found by one thread.
  __device__ int64_t find_alone(int64_t first, int64_t last, const Splitter<D>& splitter) const {
    while (first < last) {
      int64_t middle = (first + last) / 2;
      if (before(middle, splitter, false)) {
        first = middle + 1;
      } else {
        last = middle;
      }
    }
    return first;
  }
};

template <int D, typename T>
__global__ void count_rows(SortedRows<D, T> rows, const uint32_t* splitters, const int32_t* place, int32_t* counts) {
  __shared__ int64_t ends[2];
  constexpr int last_byte = Splitter<D>::bytes - 1;
  int byte = place[0] < 0 ? 0 : place[0] > last_byte ? last_byte : place[0];
  int warp = static_cast<int>(threadIdx.x) / warp_size;
  Splitter<D> splitter(splitters + static_cast<int64_t>(blockIdx.x) * Splitter<D>::halves);
  if (warp < 2) {
    int64_t end = rows.find(0, rows.num(), splitter.with_byte(byte, warp == 0 ? 0 : byte_values - 1), false);
    if (lane_index() == 0) ends[warp] = end;
  }
  __syncthreads();
  int64_t row = rows.find_alone(ends[0], ends[1], splitter.with_byte(byte, threadIdx.x));
  counts[thread_index()] = static_cast<int32_t>(row);
}

template <int D, typename T>
__global__ void find_rows(SortedRows<D, T> rows, const uint32_t* splitters, int64_t number, int32_t* below,
                          int32_t* equal) {
  int64_t s = thread_index() / warp_size, count = rows.num();
  if (s >= number) return;
  Splitter<D> splitter(splitters + s * Splitter<D>::halves);
  int64_t first = rows.find(0, count, splitter, false), end = rows.find(first, count, splitter, true);
  if (lane_index() != 0) return;
  below[s] = static_cast<int32_t>(first);
  equal[s] = static_cast<int32_t>(end - first);
}

template <int D, typename T>
SortedRows<D, T> sorted_rows(Queue& queue, const SplitterSearch<D, T>& in) {
  return {in.pos, in.num, device_grid(queue, in.keys)};
}

template <int D, typename T>
void key_counts(Queue& queue, const KeyCounts<D, T>& in) {
  queue.launch(in.number(), byte_values, 0, count_rows<D, T>, sorted_rows(queue, in), in.splitters, in.place,
               in.counts);
}

template <int D, typename T>
void key_positions(Queue& queue, const KeyPositions<D, T>& in) {
  queue.launch_warps(in.number(), find_rows<D, T>, sorted_rows(queue, in), in.splitters, in.number(), in.below,
                     in.equal);
}

}  // namespace

JZTREE_KERNEL(key_counts, KeyCounts);
JZTREE_KERNEL(key_positions, KeyPositions);

}  // namespace jztree
