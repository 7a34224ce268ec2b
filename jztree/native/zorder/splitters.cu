// Counting rows for the splitters of a distributed sort.
//
// A splitter is where in the z-order the first row of a rank is: its Morton key, and the bits of its coordinates where
// others share that (see OrderWords). It is found byte by byte from the top: every rank counts, in its own z-ordered
// rows, how many lie before each of the 256 ways to go on from the bytes known so far; the sums over the ranks say
// which one is right.
//
// Searches wait for memory, and there are few of them. So a block takes a splitter: two warps find its lowest and its
// highest way to go on, 32 places at a time, and then each thread its own way between these, which from the second byte
// on are close to each other.

#include <cstdint>

#include "common/cuda/arguments.cuh"
#include "common/cuda/keys.cuh"
#include "common/cuda/queue.cuh"
#include "common/cuda/warp_search.cuh"

namespace jztree {
namespace {

constexpr int byte_values = 256;

// The words of a splitter (see OrderWords), which has two halves of each, the higher one first.
template <int D>
struct Splitter {
  static constexpr int halves = 2 * OrderWords<D>::count;
  static constexpr int bytes = 8 * OrderWords<D>::count;
  uint64_t words[OrderWords<D>::count];

  __device__ explicit Splitter(const uint32_t* from) {
    for (int i = 0; i < OrderWords<D>::count; ++i) words[i] = uint64_t{from[2 * i]} << 32 | from[2 * i + 1];
  }
  // With byte `place` (0 is the highest), which is 0, set to `value`.
  __device__ Splitter with_byte(int place, uint64_t value) const {
    Splitter other(*this);
    other.words[place / 8] |= value << (56 - 8 * (place % 8));
    return other;
  }
};

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

template <typename Body>
ffi::Error with_rows(Queue& queue, const ffi::AnyBuffer& pos, const ffi::Buffer<ffi::S32>& num,
                     const ffi::AnyBuffer& lower, const ffi::AnyBuffer& upper, const ffi::AnyBuffer& box,
                     const Body& body) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    Lengths lengths;
    if (!read_lengths(box, D, &lengths) || lower.element_count() != D || upper.element_count() != D)
      return invalid("a splitter search was called with arrays that do not fit together.");
    SortedRows<D, T> rows{pos.typed_data<T>(), read_count(num, pos.dimensions()[0]),
                          device_grid<D, T>(queue, lower, upper, lengths)};
    return body(rows, type, dims);
  });
}

// counts[s, b]: rows before splitter s with byte `place` set to b. Its bytes from there on are 0.
ffi::Error key_counts(cudaStream_t stream, DeviceMemory scratch, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num,
                      ffi::AnyBuffer lower, ffi::AnyBuffer upper, ffi::AnyBuffer box, ffi::Buffer<ffi::U32> splitters,
                      ffi::Buffer<ffi::S32> place, ffi::Result<ffi::Buffer<ffi::S32>> counts) {
  Queue queue(stream, scratch);
  return with_rows(queue, pos, num, lower, upper, box, [&](const auto& rows, auto type, auto dims) {
    constexpr int D = decltype(dims)::value;
    using T = decltype(type);
    int64_t number = static_cast<int64_t>(splitters.element_count()) / Splitter<D>::halves;
    if (static_cast<int64_t>(splitters.element_count()) != number * Splitter<D>::halves ||
        static_cast<int64_t>(counts->element_count()) != number * byte_values)
      return invalid("key_counts was called with arrays that do not fit together.");
    queue.launch(number, byte_values, 0, count_rows<D, T>, rows, splitters.typed_data(), place.typed_data(),
                 counts->typed_data());
    return ffi::Error::Success();
  });
}

// below[s]: rows before splitter s; equal[s]: rows at it.
ffi::Error key_positions(cudaStream_t stream, DeviceMemory scratch, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num,
                         ffi::AnyBuffer lower, ffi::AnyBuffer upper, ffi::AnyBuffer box,
                         ffi::Buffer<ffi::U32> splitters, ffi::Result<ffi::Buffer<ffi::S32>> below,
                         ffi::Result<ffi::Buffer<ffi::S32>> equal) {
  Queue queue(stream, scratch);
  return with_rows(queue, pos, num, lower, upper, box, [&](const auto& rows, auto type, auto dims) {
    constexpr int D = decltype(dims)::value;
    using T = decltype(type);
    int64_t number = static_cast<int64_t>(splitters.element_count()) / Splitter<D>::halves;
    if (static_cast<int64_t>(splitters.element_count()) != number * Splitter<D>::halves ||
        static_cast<int64_t>(below->element_count()) != number ||
        static_cast<int64_t>(equal->element_count()) != number)
      return invalid("key_positions was called with arrays that do not fit together.");
    queue.launch_warps(number, find_rows<D, T>, rows, splitters.typed_data(), number, below->typed_data(),
                       equal->typed_data());
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_key_counts, key_counts);
JZTREE_HANDLER(jztree_key_positions, key_positions);

}  // namespace jztree
