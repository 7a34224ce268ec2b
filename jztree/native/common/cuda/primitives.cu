#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "bounded_memory.cuh"
#include "primitives.cuh"

namespace jztree {
namespace {

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

template <typename T>
void scan(Queue& queue, const T* in, T* out, int64_t count) {
  in_bounded_memory(queue, most_scan_bytes(count), [&](void* work, size_t& bytes, cudaStream_t stream) {
    return cub::DeviceScan::ExclusiveSum(work, bytes, in, out, count, stream);
  });
}

}  // namespace

template <typename Key, typename Value>
void sort_pairs(Queue& queue, DoubleBuffer<Key>& keys, DoubleBuffer<Value>& values, int64_t count, int begin_bit,
                int end_bit) {
  static_assert(sizeof(Key) >= 4 && sizeof(Key) <= 8 && sizeof(Value) <= 8,
                "most_sort_bytes supports only these types");
  cub::DoubleBuffer<Key> key(keys.current, keys.other);
  cub::DoubleBuffer<Value> value(values.current, values.other);
  in_bounded_memory(queue, most_sort_bytes(count), [&](void* work, size_t& bytes, cudaStream_t stream) {
    return cub::DeviceRadixSort::SortPairs(work, bytes, key, value, count, begin_bit, end_bit, stream);
  });
  keys = {key.Current(), key.Alternate()};
  values = {value.Current(), value.Alternate()};
}

template void sort_pairs(Queue&, DoubleBuffer<uint32_t>&, DoubleBuffer<uint32_t>&, int64_t, int, int);
template void sort_pairs(Queue&, DoubleBuffer<uint32_t>&, DoubleBuffer<uint64_t>&, int64_t, int, int);
template void sort_pairs(Queue&, DoubleBuffer<uint64_t>&, DoubleBuffer<uint32_t>&, int64_t, int, int);

void exclusive_sum(Queue& queue, const int32_t* in, int32_t* out, int64_t count) { scan(queue, in, out, count); }
void exclusive_sum(Queue& queue, const int64_t* in, int64_t* out, int64_t count) { scan(queue, in, out, count); }

}  // namespace jztree
