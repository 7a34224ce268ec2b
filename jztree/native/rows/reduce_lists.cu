// The time is bound by memory. A warp reduces a list; all warps of a block reduce a long list together. The lanes of a
// warp read consecutive values: as many columns as possible, of one row or of several. The order of a sum depends only
// on the length of its list and the number of columns.

#include <algorithm>
#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/warp.cuh"
#include "reduce_lists.h"

namespace jztree {
namespace {

constexpr int block_warps = 8, long_list = 1024;

template <typename T>
struct ListValues {
  const T* values;
  const int32_t *splits, *start;
  T* reduced;
  int64_t entries, lists, columns;

  // The first of `entries` at or after the start of a list.
  __device__ int64_t place(int64_t list) const {
    const int64_t place = static_cast<int64_t>(splits[list]) - *start;
    return place < 0 ? 0 : place < entries ? place : entries;
  }
};

// Reduce one of `width` columns from `first` on per lane, over every `step`-th of the groups of rows of a warp, from
// group `part` on. Every lane gets the result of its column.
template <typename Rule, typename T>
__device__ typename Rule::Total reduce_part(const ListValues<T>& in, int64_t begin, int64_t end, int64_t first,
                                            int width, int part, int step) {
  const int rows = warp_size / width;
  const int64_t column = first + lane_index() % width;
  typename Rule::Total total = Rule::initial();
  if (column < in.columns)
    for (int64_t row = begin + part * rows + lane_index() / width; row < end; row += step * rows)
      total = Rule::add(total, in.values[row * in.columns + column]);
  for (int flip = warp_size / 2; flip >= width; flip /= 2)
    total = Rule::join(total, __shfl_xor_sync(all_lanes, total, flip));
  return total;
}

// The smallest power of two that is at least the number of columns, up to the size of a warp.
__device__ inline int width_of(int64_t columns) {
  int width = 1;
  while (width < columns && width < warp_size) width *= 2;
  return width;
}

template <typename Rule, typename T>
__device__ void reduce_short(const ListValues<T>& in, int64_t list, int64_t begin, int64_t end) {
  const int width = width_of(in.columns);
  for (int64_t first = 0; first < in.columns; first += width) {
    const auto total = reduce_part<Rule>(in, begin, end, first, width, 0, 1);
    const int64_t column = first + lane_index();
    if (lane_index() < width && column < in.columns) in.reduced[list * in.columns + column] = Rule::result(total);
  }
}

// Called by all threads of the block.
template <typename Rule, typename T>
__device__ void reduce_long(const ListValues<T>& in, int64_t list, int64_t begin, int64_t end) {
  __shared__ typename Rule::Total parts[block_warps][warp_size];
  const int width = width_of(in.columns), warp = static_cast<int>(threadIdx.x) / warp_size;
  for (int64_t first = 0; first < in.columns; first += width) {
    parts[warp][lane_index()] = reduce_part<Rule>(in, begin, end, first, width, warp, block_warps);
    __syncthreads();
    const int64_t column = first + lane_index();
    if (warp == 0 && lane_index() < width && column < in.columns) {
      typename Rule::Total total = parts[0][lane_index()];
      for (int warp_number = 1; warp_number < block_warps; ++warp_number)
        total = Rule::join(total, parts[warp_number][lane_index()]);
      in.reduced[list * in.columns + column] = Rule::result(total);
    }
    __syncthreads();
  }
}

// A block for each `block_warps` consecutive lists.
template <typename Rule, typename T>
__global__ void reduce_each(const __grid_constant__ ListValues<T> in) {
  const int64_t block = static_cast<int64_t>(blockIdx.x) * block_warps;
  const int64_t warp_list = block + threadIdx.x / warp_size;
  if (warp_list < in.lists) {
    const int64_t begin = in.place(warp_list), end = in.place(warp_list + 1);
    if (end - begin <= long_list) reduce_short<Rule>(in, warp_list, begin, end);
  }
  for (int64_t list = block; list < block + block_warps && list < in.lists; ++list) {
    const int64_t begin = in.place(list), end = in.place(list + 1);
    if (end - begin > long_list) reduce_long<Rule>(in, list, begin, end);
  }
}

void reduce_lists(Queue& queue, const ReduceLists& in) {
  if (in.columns == 0) return;
  in.with_rule([&](auto rule, auto zero) {
    using T = decltype(zero);
    const ListValues<T> values{static_cast<const T*>(in.values.data),
                               in.splits,
                               in.start,
                               static_cast<T*>(in.reduced.data),
                               in.entries,
                               in.lists,
                               in.columns};
    queue.launch((in.lists + block_warps - 1) / block_warps, block_warps * warp_size, 0, reduce_each<decltype(rule), T>,
                 values);
  });
}

}  // namespace

JZTREE_PLAIN_KERNEL(reduce_lists, ReduceLists);

}  // namespace jztree
