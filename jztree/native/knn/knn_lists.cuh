// The k nearest candidates of a query, kept by one lane in registers.
//
// A candidate is compared by its squared distance, then by its row: in float32 as one 64-bit integer, because the bits
// of floats that are not negative are ordered as the floats are. The row is stored plus one, and a query that is its
// own neighbour as zero, so that it comes before others at the same place.
//
// Inserting candidates one by one would have every lane wait for each insertion of any of the 32. So a lane first
// collects candidates in shared memory; when a lane has many, all lanes take a batch of their own through a sorting
// network and a bitonic merge with their lists (K. E. Batcher, 1968, "Sorting networks and their applications"),
// without a branch.
#pragma once

#include <cstdint>
#include <limits>

#include "common/cuda/queue.cuh"
#include "common/cuda/warp.cuh"

namespace jztree {

constexpr uint32_t no_row = 0xffffffffu;

template <typename T>
struct Candidate;

// Two words, so that the compiler chooses between candidates word by word after one comparison: of 64-bit integers it
// makes a minimum and a maximum, with a comparison each.
template <>
struct alignas(8) Candidate<float> {
  uint32_t row;
  int32_t bits;

  __device__ static Candidate make(float distance2, uint32_t row_plus_one) {
    return {row_plus_one, __float_as_int(distance2)};
  }
  // Before all others: fills the places of a list that its k does not need.
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

// Stands for a neighbour not found yet: farther than any other.
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

// Merges the elements Low, Low + Step, ... of a run of N, of which those at even and at odd places are sorted
// (Batcher's odd-even merge).
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

// Sorts what rises and then falls.
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

// The list of one lane: room for K, of which the last k count.
template <int K, typename T>
struct RegisterList {
  static constexpr int batch = K < 8 ? K : K > 16 ? 16 : 8;

  Candidate<T> best[K];  // rising

  // own: whether the query is its own neighbour, as the first one that is found.
  __device__ __forceinline__ void reset(int k, bool own) {
#pragma unroll
    for (int i = 0; i < K; ++i) {
      // Chosen by value: a place that is known at run time only would move the list out of the registers.
      Candidate<T> found = choose(i == K - k && own, Candidate<T>::make(0, 0), no_candidate<T>());
      best[i] = choose(i < K - k, Candidate<T>::before_all(), found);
    }
  }

  __device__ Candidate<T> bound() const { return best[K - 1]; }

  // Keeps the nearest of what it holds and of `batch` others, which are overwritten. The smaller of the i-th largest of
  // the one and the i-th smallest of the other are those, and they rise and then fall.
  __device__ __forceinline__ void absorb(Candidate<T>* others) {
    network::sort<0, batch>(others);
#pragma unroll
    for (int i = 0; i < batch; ++i) best[K - 1 - i] = choose(others[i] < best[K - 1 - i], others[i], best[K - 1 - i]);
    network::bitonic_merge<0, K>(best);
  }
};

}  // namespace jztree
