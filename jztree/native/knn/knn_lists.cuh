// The k nearest candidates of a query, kept by one lane.
//
// A candidate is compared by its squared distance, then by its row. In float32 this is a comparison of 64-bit integers,
// because the bits of non-negative floats sort like the floats. The stored row is the row plus one, or zero for a query
// that is its own neighbour, so that it precedes others at the same place.
//
// If candidates were inserted one by one, all lanes would wait for the insertions of each lane. So a lane first
// collects candidates in shared memory. When one lane has collected enough, each lane sorts a batch with a sorting
// network and combines it with its list by a bitonic merge (K. E. Batcher, 1968, "Sorting networks and their
// applications"), without a branch.
#pragma once

#include <cstdint>
#include <limits>

#include "common/cuda/queue.cuh"
#include "common/cuda/warp.cuh"

namespace jztree {

constexpr uint32_t no_row = 0xffffffffu;

template <typename T>
struct Candidate;

// Two words instead of a 64-bit integer. The compiler then makes one comparison and selects word by word. For 64-bit
// integers it would generate a minimum and a maximum, each with a comparison.
template <>
struct alignas(8) Candidate<float> {
  uint32_t row;
  int32_t bits;

  __device__ static Candidate make(float distance2, uint32_t row_plus_one) {
    return {row_plus_one, __float_as_int(distance2)};
  }
  // Sorts before all others. It fills the entries of a list that are not needed, if k is smaller than the capacity.
  __device__ static Candidate before_all() { return {0, std::numeric_limits<int32_t>::min()}; }
  __device__ bool operator<(const Candidate& other) const { return key() < other.key(); }
  __device__ float distance2() const { return __int_as_float(bits); }
  __device__ uint32_t row_plus_one() const { return row; }

 private:
  __device__ int64_t key() const {
    return static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(bits)) << 32 | row);
  }
};

template <>
struct Candidate<double> {
  double distance;
  uint32_t row;

  __device__ static Candidate make(double distance2, uint32_t row_plus_one) { return {distance2, row_plus_one}; }
  __device__ static Candidate before_all() { return {-1., 0}; }
  __device__ bool operator<(const Candidate& other) const {
    return distance < other.distance || (distance == other.distance && row < other.row);
  }
  __device__ double distance2() const { return distance; }
  __device__ uint32_t row_plus_one() const { return row; }
};

// Represents a neighbour not found yet: farther than any other.
template <typename T>
__device__ Candidate<T> no_candidate() {
  return Candidate<T>::make(std::numeric_limits<T>::infinity(), no_row);
}

__device__ __forceinline__ Candidate<float> choose(bool first, const Candidate<float>& a, const Candidate<float>& b) {
  return {first ? a.row : b.row, first ? a.bits : b.bits};
}

__device__ __forceinline__ Candidate<double> choose(bool first, const Candidate<double>& a,
                                                    const Candidate<double>& b) {
  return {first ? a.distance : b.distance, first ? a.row : b.row};
}

template <typename T>
__device__ Candidate<T> shuffled(const Candidate<T>& candidate, int flip) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return {__shfl_xor_sync(all_lanes, candidate.row, flip), __shfl_xor_sync(all_lanes, candidate.bits, flip)};
  } else {
    return {__shfl_xor_sync(all_lanes, candidate.distance, flip), __shfl_xor_sync(all_lanes, candidate.row, flip)};
  }
}

namespace network {

template <typename T>
__device__ __forceinline__ void exchange(Candidate<T>& a, Candidate<T>& b) {
  bool swap = b < a;
  Candidate<T> low = choose(swap, b, a), high = choose(swap, a, b);
  a = low;
  b = high;
}

// Merge the elements Low, Low + Step, ... of a run of N whose elements at even and at odd places are sorted (Batcher's
// odd-even merge).
template <int Low, int N, int Step, typename T>
__device__ __forceinline__ void odd_even_merge(Candidate<T>* a) {
  if constexpr (2 * Step < N) {
    odd_even_merge<Low, N, 2 * Step>(a);
    odd_even_merge<Low + Step, N, 2 * Step>(a);
#pragma unroll
    for (int i = Low + Step; i + Step < Low + N; i += 2 * Step) exchange(a[i], a[i + Step]);
  } else {
    exchange(a[Low], a[Low + Step]);
  }
}

template <int Low, int N, typename T>
__device__ __forceinline__ void sort(Candidate<T>* a) {
  if constexpr (N > 1) {
    sort<Low, N / 2>(a);
    sort<Low + N / 2, N / 2>(a);
    odd_even_merge<Low, N, 1>(a);
  }
}

// Sort a sequence that ascends and then descends.
template <int Low, int N, typename T>
__device__ __forceinline__ void bitonic_merge(Candidate<T>* a) {
  if constexpr (N > 1) {
#pragma unroll
    for (int i = Low; i < Low + N / 2; ++i) exchange(a[i], a[i + N / 2]);
    bitonic_merge<Low, N / 2>(a);
    bitonic_merge<Low + N / 2, N / 2>(a);
  }
}

}  // namespace network

// The lists of 32 lanes, with capacity K, in shared memory: a column per lane. Only the last k entries count. A list is
// in registers only while it absorbs candidates, so that more warps fit on a multiprocessor.
template <int K, typename T>
struct LaneList {
  static constexpr int batch = K < 8 ? K : K > 16 ? 16 : 8;
  static constexpr int64_t bytes = int64_t{K} * warp_size * static_cast<int64_t>(sizeof(Candidate<T>));

  Candidate<T>* first;  // of lane 0

  // The i-th entry of a lane's list; entries ascend.
  __device__ Candidate<T>& at(int lane, int i) const { return first[i * warp_size + lane]; }
  __device__ Candidate<T>& own(int i) const { return at(lane_index(), i); }

  // is_own: whether the query is its own neighbour, as the first one.
  __device__ __forceinline__ void reset(int k, bool is_own) const {
#pragma unroll 1
    for (int i = 0; i < K; ++i)
      own(i) = i < K - k              ? Candidate<T>::before_all()
               : i == K - k && is_own ? Candidate<T>::make(0, 0)
                                      : no_candidate<T>();
  }

  __device__ Candidate<T> bound() const { return own(K - 1); }

  // Keep the nearest of the current entries and `batch` other candidates, which are overwritten. To find them, take the
  // minimum of the i-th largest entry and the i-th smallest other candidate for each i. This sequence ascends and then
  // descends. Returns the last entry.
  __device__ __forceinline__ Candidate<T> absorb(Candidate<T>* others) const {
    network::sort<0, batch>(others);
    Candidate<T> best[K];
#pragma unroll
    for (int i = 0; i < K; ++i) best[i] = own(i);
#pragma unroll
    for (int i = 0; i < batch; ++i) best[K - 1 - i] = choose(others[i] < best[K - 1 - i], others[i], best[K - 1 - i]);
    network::bitonic_merge<0, K>(best);
#pragma unroll
    for (int i = 0; i < K; ++i) own(i) = best[i];
    return best[K - 1];
  }
};

}  // namespace jztree
