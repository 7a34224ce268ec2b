// Algorithms over whole arrays, from the CUB library that comes with the CUDA toolkit. Only primitives.cu includes CUB:
// its headers take longer to compile than most kernels.
#pragma once

#include <cstdint>

#include "common/portable.h"
#include "queue.cuh"

namespace jztree {

// The number of bits of the numbers from 0 to `largest`.
inline int bits_of(int64_t largest) { return largest > 0 ? 64 - leading_zeros(static_cast<uint64_t>(largest)) : 1; }

// An array and an equally large work array.
template <typename T>
struct DoubleBuffer {
  T *current, *other;
};

// A stable sort of pairs by the bits [begin_bit, end_bit) of their unsigned keys. Both arrays of each buffer are
// overwritten; afterwards, `current` has the results. Defined for the types that kernels use.
template <typename Key, typename Value>
void sort_pairs(Queue& queue, DoubleBuffer<Key>& keys, DoubleBuffer<Value>& values, int64_t count, int begin_bit = 0,
                int end_bit = 8 * sizeof(Key));

// out[i] = in[0] + ... + in[i - 1]. In place if in is out.
void exclusive_sum(Queue& queue, const int32_t* in, int32_t* out, int64_t count);
void exclusive_sum(Queue& queue, const int64_t* in, int64_t* out, int64_t count);

// Sorts and sums of signed and of unsigned numbers have the same bits.
template <typename Key>
void sort_pairs(Queue& queue, DoubleBuffer<Key>& keys, DoubleBuffer<int32_t>& values, int64_t count, int begin_bit = 0,
                int end_bit = 8 * sizeof(Key)) {
  DoubleBuffer<uint32_t> same{reinterpret_cast<uint32_t*>(values.current), reinterpret_cast<uint32_t*>(values.other)};
  sort_pairs(queue, keys, same, count, begin_bit, end_bit);
  values = {reinterpret_cast<int32_t*>(same.current), reinterpret_cast<int32_t*>(same.other)};
}

inline void exclusive_sum(Queue& queue, const uint64_t* in, uint64_t* out, int64_t count) {
  exclusive_sum(queue, reinterpret_cast<const int64_t*>(in), reinterpret_cast<int64_t*>(out), count);
}

}  // namespace jztree
