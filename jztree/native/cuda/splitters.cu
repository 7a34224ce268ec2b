// Counting keys for the splitters of a distributed sort.
//
// A splitter is the Morton key of the row that is to be the first of a rank. It is found byte by byte from the top:
// every rank counts, in its own z-ordered rows, how many keys lie below each of the 256 ways to go on from the bytes
// known so far; the sums over the ranks say which one is right.
//
// Searches wait for memory, and there are few of them. So a block takes a splitter: two warps find its lowest and its
// highest way to go on, 32 places at a time, and then each thread its own way between these, which from the second byte
// on are close to each other.

#include <cstdint>

#include "arguments.cuh"
#include "keys.cuh"
#include "queue.cuh"
#include "warp_search.cuh"

namespace jztree {
namespace {

constexpr int key_words = 4;  // of 32 bits, the highest first
constexpr int byte_values = 256;

__device__ MortonKey read_key(const uint32_t* words) {
  return {uint64_t{words[0]} << 32 | words[1], uint64_t{words[2]} << 32 | words[3]};
}

// The key with byte `place` (0 is the highest) set to `value`.
__device__ MortonKey with_byte(MortonKey key, int place, uint64_t value) {
  (place < 8 ? key.high : key.low) |= value << (56 - 8 * (place % 8));
  return key;
}

template <int D, typename T>
struct SortedKeys {
  const T* pos;
  Count num;
  const KeyGrid<D>* grid;

  // The first of the rows [first, last) whose key is not below (above: is above) the given one, found by a warp.
  __device__ int64_t find(int64_t first, int64_t last, const MortonKey& key, bool above) const {
    return warp_search(first, last, [&](int64_t row) {
      MortonKey other = Morton<D>::key(*grid, pos + row * D);
      return above ? !(key < other) : other < key;
    });
  }
};

template <int D, typename T>
__global__ void count_keys(SortedKeys<D, T> keys, const uint32_t* splitters, const int32_t* place, int32_t* counts) {
  __shared__ int64_t ends[2];
  int byte = place[0] < 0 ? 0 : place[0] > 15 ? 15 : place[0], warp = static_cast<int>(threadIdx.x) / warp_size;
  MortonKey key = read_key(splitters + static_cast<int64_t>(blockIdx.x) * key_words);
  if (warp < 2) {
    int64_t end = keys.find(0, keys.num(), with_byte(key, byte, warp == 0 ? 0 : byte_values - 1), false);
    if (lane_index() == 0) ends[warp] = end;
  }
  __syncthreads();
  int64_t first = ends[0];
  MortonKey bound = with_byte(key, byte, threadIdx.x);
  int64_t row = first + key_place(*keys.grid, keys.pos + first * D, ends[1] - first, bound, false);
  counts[thread_index()] = static_cast<int32_t>(row);
}

template <int D, typename T>
__global__ void find_keys(SortedKeys<D, T> keys, const uint32_t* splitters, int64_t number, int32_t* below,
                          int32_t* equal) {
  int64_t s = thread_index() / warp_size, rows = keys.num();
  if (s >= number) return;
  MortonKey key = read_key(splitters + s * key_words);
  int64_t first = keys.find(0, rows, key, false), end = keys.find(first, rows, key, true);
  if (lane_index() != 0) return;
  below[s] = static_cast<int32_t>(first);
  equal[s] = static_cast<int32_t>(end - first);
}

template <typename Body>
ffi::Error with_keys(Queue& queue, const ffi::AnyBuffer& pos, const ffi::Buffer<ffi::S32>& num,
                     const ffi::AnyBuffer& lower, const ffi::AnyBuffer& upper, const ffi::AnyBuffer& box,
                     const Body& body) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    Lengths lengths;
    if (!read_lengths(box, D, &lengths) || lower.element_count() != D || upper.element_count() != D)
      return invalid("a splitter search was called with arrays that do not fit together.");
    SortedKeys<D, T> keys{pos.typed_data<T>(), read_count(num, pos.dimensions()[0]),
                          device_grid<D, T>(queue, lower, upper, lengths)};
    return body(keys, type, dims);
  });
}

// counts[s, b]: rows whose key is below splitter s with byte `place` set to b. Its bytes from there on are 0.
ffi::Error key_counts(cudaStream_t stream, DeviceMemory scratch, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num,
                      ffi::AnyBuffer lower, ffi::AnyBuffer upper, ffi::AnyBuffer box, ffi::Buffer<ffi::U32> splitters,
                      ffi::Buffer<ffi::S32> place, ffi::Result<ffi::Buffer<ffi::S32>> counts) {
  Queue queue(stream, scratch);
  return with_keys(queue, pos, num, lower, upper, box, [&](const auto& keys, auto type, auto dims) {
    constexpr int D = decltype(dims)::value;
    using T = decltype(type);
    int64_t number = static_cast<int64_t>(splitters.element_count()) / key_words;
    if (static_cast<int64_t>(counts->element_count()) != number * byte_values)
      return invalid("key_counts was called with arrays that do not fit together.");
    queue.launch(number, byte_values, 0, count_keys<D, T>, keys, splitters.typed_data(), place.typed_data(),
                 counts->typed_data());
    return ffi::Error::Success();
  });
}

// below[s]: rows whose key is below splitter s; equal[s]: rows that have it.
ffi::Error key_positions(cudaStream_t stream, DeviceMemory scratch, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num,
                         ffi::AnyBuffer lower, ffi::AnyBuffer upper, ffi::AnyBuffer box,
                         ffi::Buffer<ffi::U32> splitters, ffi::Result<ffi::Buffer<ffi::S32>> below,
                         ffi::Result<ffi::Buffer<ffi::S32>> equal) {
  Queue queue(stream, scratch);
  return with_keys(queue, pos, num, lower, upper, box, [&](const auto& keys, auto type, auto dims) {
    constexpr int D = decltype(dims)::value;
    using T = decltype(type);
    int64_t number = static_cast<int64_t>(splitters.element_count()) / key_words;
    if (static_cast<int64_t>(below->element_count()) != number ||
        static_cast<int64_t>(equal->element_count()) != number)
      return invalid("key_positions was called with arrays that do not fit together.");
    queue.launch_warps(number, find_keys<D, T>, keys, splitters.typed_data(), number, below->typed_data(),
                       equal->typed_data());
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_key_counts, key_counts);
JZTREE_HANDLER(jztree_key_positions, key_positions);

}  // namespace jztree
