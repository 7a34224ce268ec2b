// Algorithms over whole arrays, from the CUB library that comes with the CUDA toolkit.
#pragma once

#include <cub/cub.cuh>

#include "common/portable.h"
#include "queue.cuh"

namespace jztree {

// How many bits hold the numbers from 0 to `largest`.
inline int bits_of(int64_t largest) { return largest > 0 ? 64 - leading_zeros(static_cast<uint64_t>(largest)) : 1; }

// A stable sort of pairs by the bits [begin_bit, end_bit) of their unsigned keys. Both buffers are overwritten; the
// results are what Current() of each is afterwards.
template <typename Key, typename Value>
void sort_pairs(Queue& queue, cub::DoubleBuffer<Key>& keys, cub::DoubleBuffer<Value>& values, int64_t count,
                int begin_bit = 0, int end_bit = 8 * sizeof(Key)) {
  size_t bytes = 0;
  auto sort = [&](void* work) {
    Queue::check(cub::DeviceRadixSort::SortPairs(work, bytes, keys, values, count, begin_bit, end_bit, queue.stream()));
  };
  sort(nullptr);
  sort(queue.scratch<unsigned char>(static_cast<int64_t>(bytes)));
}

// out[i] = in[0] + ... + in[i - 1], added up in the type of in. In place if in is out.
template <typename In, typename Out>
void exclusive_sum(Queue& queue, In in, Out out, int64_t count) {
  size_t bytes = 0;
  auto scan = [&](void* work) {
    Queue::check(cub::DeviceScan::ExclusiveSum(work, bytes, in, out, count, queue.stream()));
  };
  scan(nullptr);
  scan(queue.scratch<unsigned char>(static_cast<int64_t>(bytes)));
}

// out[i] = combine(out[i - 1], in[i]).
template <typename In, typename Out, typename Combine>
void inclusive_scan(Queue& queue, In in, Out out, Combine combine, int64_t count) {
  size_t bytes = 0;
  auto scan = [&](void* work) {
    Queue::check(cub::DeviceScan::InclusiveScan(work, bytes, in, out, combine, count, queue.stream()));
  };
  scan(nullptr);
  scan(queue.scratch<unsigned char>(static_cast<int64_t>(bytes)));
}

}  // namespace jztree
