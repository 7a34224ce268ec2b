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
#include <type_traits>

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

__device__ __forceinline__ void exchange(uint32_t& a, uint32_t& b) {
  const uint32_t low = b < a ? b : a, high = b < a ? a : b;
  a = low;
  b = high;
}

// Merge the elements Low, Low + Step, ... of a run of N whose elements at even and at odd places are sorted (Batcher's
// odd-even merge).
template <int Low, int N, int Step, typename T>
__device__ __forceinline__ void odd_even_merge(T* a) {
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
__device__ __forceinline__ void sort(T* a) {
  if constexpr (N > 1) {
    sort<Low, N / 2>(a);
    sort<Low + N / 2, N / 2>(a);
    odd_even_merge<Low, N, 1>(a);
  }
}

// Sort a sequence that ascends and then descends.
template <int Low, int N, typename T>
__device__ __forceinline__ void bitonic_merge(T* a) {
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

  static constexpr int block = batch, patience = batch * 3 / 2;

  Candidate<T>* first;  // of lane 0

  __device__ explicit LaneList(void* memory) : first(static_cast<Candidate<T>*>(memory)) {}

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
  // Whether the list surely has the nearest candidates.
  __device__ bool is_decided() const { return true; }
  // Whether it cannot get them any more.
  __device__ bool is_lost() const { return false; }

  // Keep the nearest of the current entries and `batch` other candidates, which are overwritten. To find them, take the
  // minimum of the i-th largest entry and the i-th smallest other candidate for each i. This sequence ascends and then
  // descends.
  __device__ __forceinline__ void absorb(Candidate<T>* others, const Candidate<T>*) const {
    network::sort<0, batch>(others);
    Candidate<T> best[K];
#pragma unroll
    for (int i = 0; i < K; ++i) best[i] = own(i);
#pragma unroll
    for (int i = 0; i < batch; ++i) best[K - 1 - i] = choose(others[i] < best[K - 1 - i], others[i], best[K - 1 - i]);
    network::bitonic_merge<0, K>(best);
#pragma unroll
    for (int i = 0; i < K; ++i) own(i) = best[i];
  }
};

// The same lists, but sorted by keys of 32 bits: the first bits of the squared distance, and the place of the row. An
// exchange of keys takes two instructions instead of six. A candidate may be lost if its distance has the same bits as
// the last one of the list. In most sets, not one of a thousand lists loses a candidate. In a lattice every list does.
template <int K>
struct KeyList {
  static constexpr int batch = K > 32 ? 16 : 8, block = 8, patience = batch * 3 / 2;
  // A column has the keys, the smallest key that was dropped, the rows, and a place that nothing reads.
  static constexpr int64_t bytes = (2 * K + 2) * warp_size * static_cast<int64_t>(sizeof(uint32_t));

  uint32_t* first;  // of lane 0

  __device__ explicit KeyList(void* memory) : first(static_cast<uint32_t*>(memory)) {}

  // The i-th entry of a lane's list; entries ascend, except for entries whose distances have the same first bits. The
  // distance is rounded down.
  __device__ Candidate<float> at(int lane, int i) const {
    const uint32_t key = first[i * warp_size + lane];
    return {row(lane, key & places), static_cast<int32_t>((key & ~places) >> 1)};
  }
  __device__ Candidate<float> own(int i) const { return at(lane_index(), i); }

  __device__ __forceinline__ void reset(int k, bool is_own) const {
#pragma unroll 1
    for (uint32_t i = 0; i < K; ++i) {
      const bool is_full = static_cast<int>(i) < K - k + (is_own ? 1 : 0);
      key(static_cast<int>(i)) = is_full ? i : none | i;
      row(lane_index(), i) = is_full ? 0 : no_row;
    }
    dropped() = none;
  }

  // Every candidate with the first bits of the last entry is within the bound.
  __device__ Candidate<float> bound() const {
    const uint32_t last = key(K - 1);
    if (last >= none) return no_candidate<float>();
    return {no_row - 1, static_cast<int32_t>((last | places) >> 1)};
  }

  __device__ bool is_decided() const { return dropped() > (key(K - 1) | places) || key(K - 1) >= none; }

  // If more points than the list holds are at the same place, their rows decide. Without this test, a search among
  // equal points would visit all of them.
  __device__ bool is_lost() const { return dropped() <= places; }

  // columns: the first of `others` in the memory of the warp; each next one is in the next column.
  __device__ __forceinline__ void absorb(const Candidate<float>* others, const Candidate<float>* columns) const {
    uint32_t keys[batch], best[K];
#pragma unroll
    for (int i = 0; i < batch; ++i)
      keys[i] = (static_cast<uint32_t>(others[i].bits) << 1 & ~places) | static_cast<uint32_t>(K + i);
    network::sort<0, batch>(keys);
#pragma unroll
    for (int i = 0; i < K; ++i) best[i] = key(i);
    uint32_t smallest = dropped();
    uint32_t* const rows = &row(lane_index(), 0);
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const uint32_t last = best[K - 1 - i], other_row = columns[((keys[i] & places) - K) * warp_size].row;
      const bool is_nearer = keys[i] < last;
      // The candidate takes the place of the dropped one. Without a branch.
      const uint32_t place = is_nearer ? last & places : K;
      rows[place * warp_size] = other_row;
      best[K - 1 - i] = is_nearer ? (keys[i] & ~places) | place : last;
      const uint32_t larger = is_nearer ? last : keys[i];
      smallest = larger < smallest ? larger : smallest;
    }
    dropped() = smallest;
    network::bitonic_merge<0, K>(best);
#pragma unroll
    for (int i = 0; i < K; ++i) key(i) = best[i];
  }

 private:
  static constexpr uint32_t bits_of(uint32_t number) { return number == 0 ? 0 : 1 + bits_of(number / 2); }
  static constexpr uint32_t places = (1u << bits_of(K + batch - 1)) - 1;
  static constexpr uint32_t none = 0xff000000u;  // the first bits of infinity

  __device__ uint32_t& key(int i) const { return first[i * warp_size + lane_index()]; }
  __device__ uint32_t& dropped() const { return key(K); }
  __device__ uint32_t& row(int lane, uint32_t place) const {
    return first[(K + 1 + static_cast<int>(place)) * warp_size + lane];
  }
};

// The lists of a search.
template <int K, typename T, bool Keyed>
using ShortList = std::conditional_t<Keyed, KeyList<K>, LaneList<K, T>>;

}  // namespace jztree
