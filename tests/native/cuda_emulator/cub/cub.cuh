// The device-wide algorithms of CUB that jztree calls, on the host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "../cuda_runtime.h"

namespace cub {

// Without temporary memory, sets its required size for n values and returns true, like CUB. Otherwise overwrites the
// given memory, which must be aligned as CUB requires. The size is that of CUB on GPUs of compute capability 7.5 (CUDA
// 13.0), which have the smallest tiles: for radix sort a counter per tile for each of 256 digits, for scans 16 bytes
// per tile.
// kernel: any address that identifies the algorithm and its types.
inline bool asks(void* temporary, size_t& bytes, int64_t n, bool as_radix_sort, cudaStream_t stream,
                 const void* kernel) {
  emulator::expect_stream(stream);
  if (!temporary) {
    size_t values = as_radix_sort ? 2816 : 768, tiles = (static_cast<size_t>(n) + values - 1) / values;
    bytes = as_radix_sort ? tiles * 1024 + 8 * 256 * 8 + 1279 : (tiles + 32) * 16 + 255;
    return true;
  }
  if (n > 0) emulator::use_kernel(stream, kernel);
  if (reinterpret_cast<uintptr_t>(temporary) % 256 != 0)
    emulator::fail("the memory for CUB is not aligned to 256 bytes.");
  emulator::put_on(stream, [=] { std::memset(temporary, 0x5a, bytes); });
  return false;
}

// A sort reads the keys once to count digits, and moves all data once per eight bits; a scan reads and writes once.
// Called when the work runs: a call that is only captured, to load its kernels, moves nothing.
inline void count_sort(size_t key_bytes, size_t value_bytes, int64_t n, int bits) {
  size_t keys = static_cast<size_t>(n) * key_bytes, all = keys + static_cast<size_t>(n) * value_bytes;
  size_t passes = static_cast<size_t>(bits + 7) / 8;
  emulator::count_transfer(keys + passes * all, passes * all);
}
inline void count_scan(size_t in_bytes, size_t out_bytes, int64_t n) {
  emulator::count_transfer(static_cast<size_t>(n) * in_bytes, static_cast<size_t>(n) * out_bytes);
}

template <typename T>
struct DoubleBuffer {
  T* d_buffers[2];
  int selector = 0;
  DoubleBuffer(T* current, T* alternate) : d_buffers{current, alternate} {}
  T* Current() { return d_buffers[selector]; }
  T* Alternate() { return d_buffers[selector ^ 1]; }
};

struct DeviceRadixSort {
  template <typename K, typename V, typename N>
  static cudaError_t SortPairs(void* temporary, size_t& bytes, DoubleBuffer<K>& keys, DoubleBuffer<V>& values, N count,
                               int begin_bit, int end_bit, cudaStream_t stream) {
    static const char kernel = 0;
    if (asks(temporary, bytes, static_cast<int64_t>(count), true, stream, &kernel)) return cudaSuccess;
    emulator::put_on(stream, [=] {
      count_sort(sizeof(K), sizeof(V), static_cast<int64_t>(count), end_bit - begin_bit);
      sort(keys, values, static_cast<size_t>(count), begin_bit, end_bit);
    });
    keys.selector ^= 1;
    values.selector ^= 1;
    return emulator::last_error();  // as CUB, which looks for errors of its launches there
  }

 private:
  template <typename K, typename V>
  static void sort(DoubleBuffer<K> keys, DoubleBuffer<V> values, size_t n, int begin_bit, int end_bit) {
    int bits = end_bit - begin_bit;
    K mask = bits == static_cast<int>(8 * sizeof(K)) ? ~K{0} : static_cast<K>((K{1} << bits) - 1);
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), size_t{0});
    const K* from = keys.Current();
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return ((from[a] >> begin_bit) & mask) < ((from[b] >> begin_bit) & mask);
    });
    for (size_t i = 0; i < n; ++i) {
      keys.Alternate()[i] = keys.Current()[order[i]];
      values.Alternate()[i] = values.Current()[order[i]];
    }
    // As on a GPU, the contents of the other buffer are undefined.
    for (size_t i = 0; i < n; ++i) keys.Current()[i] = ~K{0}, values.Current()[i] = static_cast<V>(0x5a5a5a5a);
  }
};

struct DeviceScan {
  template <typename In, typename Out, typename N>
  static cudaError_t ExclusiveSum(void* temporary, size_t& bytes, In in, Out out, N count, cudaStream_t stream) {
    static const char kernel = 0;
    if (asks(temporary, bytes, static_cast<int64_t>(count), false, stream, &kernel)) return cudaSuccess;
    emulator::put_on(stream, [=] {
      count_scan(sizeof(*in), sizeof(*out), static_cast<int64_t>(count));
      std::decay_t<decltype(*in)> sum = 0;  // CUB adds in the type of the input
      for (N i = 0; i < count; ++i) {
        auto next = in[i];
        out[i] = sum;
        sum += next;
      }
    });
    return emulator::last_error();
  }
};

}  // namespace cub
