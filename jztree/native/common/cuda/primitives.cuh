// Algorithms over whole arrays, from the CUB library that comes with the CUDA toolkit.
#pragma once

#include <cub/cub.cuh>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "common/portable.h"
#include "queue.cuh"

namespace jztree {

// The number of bits of the numbers from 0 to `largest`.
inline int bits_of(int64_t largest) { return largest > 0 ? 64 - leading_zeros(static_cast<uint64_t>(largest)) : 1; }

// Run an algorithm of CUB in `most` bytes of work memory. Called without memory, CUB returns the number of bytes that
// it needs. When the program is traced, this would need a GPU, so `most` is an upper limit. If it were too small, this
// would raise an error and write nothing.
template <typename Algorithm>
void in_bounded_memory(Queue& queue, int64_t most, const Algorithm& run) {
  auto* work = queue.scratch<unsigned char>(most);
  if (queue.measures()) return;
  size_t bytes = 0;
  Queue::check(run(nullptr, bytes));
  if (bytes > static_cast<size_t>(most))
    throw std::runtime_error("CUB needs " + std::to_string(bytes) + " bytes of work memory, more than the " +
                             std::to_string(most) +
                             " bytes that jztree reserves; please report this with the "
                             "version of CUDA, the GPU and the number of particles.");
  Queue::check(run(work, bytes));
}

// Alignment, counters of passes, and the needs of small inputs.
constexpr int64_t cub_base_bytes = 64 << 10;

// An upper limit of the memory for CUB's radix sort if it may overwrite both buffers. InvokeOnesweep in CUB's
// dispatch_radix_sort.cuh, which sorts keys of 4 and 8 bytes on all GPUs since Pascal, cuts the input into portions of
// nearly 2^28 values. It has a counter of 4 bytes for each of 256 digits and each tile of a portion, and for each
// portion a histogram of 256 numbers of 8 bytes for each of 8 passes. This holds from CUDA 12.0 to CCCL's main branch
// of 2026. The smallest tiles, for compute capability 7.5, have 2816 values (CUDA 13.0); 1024 are assumed.
inline int64_t most_sort_bytes(int64_t count) {
  constexpr int64_t tile = 1024, portion = int64_t{1} << 27, counters = 256 * 4, histograms = 8 * 256 * 8;
  return cub_base_bytes + count / tile * counters + count / portion * histograms;
}

// The same for a scan of numbers of up to 8 bytes: a status and a value for each tile, 16 bytes (dispatch_scan.cuh),
// and for 32 more. The smallest tiles have 768 values (CUDA 13.0); 256 are assumed.
inline int64_t most_scan_bytes(int64_t count) { return cub_base_bytes + count / 256 * 16; }

// A stable sort of pairs by the bits [begin_bit, end_bit) of their unsigned keys. Both buffers are overwritten;
// afterwards, Current() of each holds the results.
template <typename Key, typename Value>
void sort_pairs(Queue& queue, cub::DoubleBuffer<Key>& keys, cub::DoubleBuffer<Value>& values, int64_t count,
                int begin_bit = 0, int end_bit = 8 * sizeof(Key)) {
  static_assert(sizeof(Key) >= 4 && sizeof(Key) <= 8 && sizeof(Value) <= 8,
                "most_sort_bytes supports only these types");
  in_bounded_memory(queue, most_sort_bytes(count), [&](void* work, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(work, bytes, keys, values, count, begin_bit, end_bit, queue.stream());
  });
}

// out[i] = in[0] + ... + in[i - 1], summed in the type of in. In place if in is out.
template <typename In, typename Out>
void exclusive_sum(Queue& queue, const In* in, Out* out, int64_t count) {
  static_assert(sizeof(In) <= 8 && std::is_arithmetic<In>::value, "most_scan_bytes supports only these types");
  in_bounded_memory(queue, most_scan_bytes(count), [&](void* work, size_t& bytes) {
    return cub::DeviceScan::ExclusiveSum(work, bytes, in, out, count, queue.stream());
  });
}

// out[i] = combine(out[i - 1], in[i]).
template <typename In, typename Out, typename Combine>
void inclusive_scan(Queue& queue, const In* in, Out* out, Combine combine, int64_t count) {
  static_assert(sizeof(In) <= 8 && std::is_arithmetic<In>::value, "most_scan_bytes supports only these types");
  in_bounded_memory(queue, most_scan_bytes(count), [&](void* work, size_t& bytes) {
    return cub::DeviceScan::InclusiveScan(work, bytes, in, out, combine, count, queue.stream());
  });
}

}  // namespace jztree
