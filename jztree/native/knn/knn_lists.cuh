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

#include <cmath>
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

__device__ __forceinline__ uint32_t choose(bool first, uint32_t a, uint32_t b) { return first ? a : b; }

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
//
// A search gives each row a label, the row plus one here.
template <int K, typename T>
struct LaneList {
  static constexpr int batch = K < 8 ? K : K > 16 ? 16 : 8;
  static constexpr int64_t bytes = int64_t{K} * warp_size * static_cast<int64_t>(sizeof(Candidate<T>));

  static constexpr int block = batch, patience = batch * 3 / 2;

  using Item = Candidate<T>;  // a collected candidate, and an entry of a list
  struct Lift {};             // see KeyList
  static constexpr uint32_t no_label = 0;

  Item* first;  // of lane 0
  uint32_t own_label_ = 0;

  __device__ explicit LaneList(void* memory) : first(static_cast<Item*>(memory)) {}

  __device__ static Item none() { return no_candidate<T>(); }
  __device__ static Item item(Lift, T distance2, uint32_t label) { return Item::make(distance2, label); }
  __device__ static bool has_label(const Item& item, uint32_t label) { return item.row_plus_one() == label; }
  __device__ static uint32_t row_of(uint32_t label) { return label - 1; }
  // The label of the query, if it is a source.
  __device__ void set_own_label(uint32_t label) { own_label_ = label; }
  __device__ uint32_t own_label() const { return own_label_; }
  // The candidate of a collected item. Its distance may be rounded up.
  __device__ static Candidate<T> candidate(const Item& item) { return item; }

  // The row of the i-th entry of a lane's list, plus one; entries ascend.
  __device__ uint32_t row_plus_one(int lane, int i) const { return first[i * warp_size + lane].row_plus_one(); }
  // The i-th entry of this lane's list. Its distance may be rounded down.
  __device__ Candidate<T> own(int i) const { return entry(i); }

  // is_own: whether the query is its own neighbour, as the first one.
  __device__ __forceinline__ void reset(int k, bool is_own) const {
#pragma unroll 1
    for (int i = 0; i < K; ++i)
      entry(i) = i < K - k              ? Candidate<T>::before_all()
                 : i == K - k && is_own ? Candidate<T>::make(0, 0)
                                        : no_candidate<T>();
  }

  // Whether the list can take rows without an upper limit of their distances.
  __device__ static bool has_range() { return true; }
  // Whether there are labels for a number of rows.
  __device__ static bool has_labels(uint32_t) { return true; }
  // Label a number of rows from a row on. Returns the difference of labels and rows.
  __device__ static uint32_t label_rows(uint32_t, uint32_t) { return 1; }
  // The label of a row if the first of the labelled rows is known.
  __device__ static uint32_t first_label(uint32_t row, uint32_t) { return row + 1; }

  __device__ static Lift lift() { return {}; }
  // What the search compares: a squared distance.
  __device__ static T lifted(Lift, T distance2) { return distance2; }
  __device__ static T lifted_limit(T distance2) { return distance2; }

  __device__ Candidate<T> bound() const { return entry(K - 1); }
  // Whether the list surely has the nearest candidates.
  __device__ static bool is_decided(T) { return true; }
  // Whether it cannot get them any more.
  __device__ static bool is_lost() { return false; }

  // Keep the nearest of the current entries and `batch` other candidates, which are overwritten. To find them, take the
  // minimum of the i-th largest entry and the i-th smallest other candidate for each i. This sequence ascends and then
  // descends.
  __device__ __forceinline__ void absorb(Candidate<T>* others) const {
    network::sort<0, batch>(others);
    Candidate<T> best[K];
#pragma unroll
    for (int i = 0; i < K; ++i) best[i] = entry(i);
#pragma unroll
    for (int i = 0; i < batch; ++i) best[K - 1 - i] = choose(others[i] < best[K - 1 - i], others[i], best[K - 1 - i]);
    network::bitonic_merge<0, K>(best);
#pragma unroll
    for (int i = 0; i < K; ++i) entry(i) = best[i];
  }

 private:
  __device__ Item& entry(int i) const { return first[i * warp_size + lane_index()]; }
};

// A set of up to 128 segments in shared memory, a bit each; see KeyList.
struct Segments {
  static constexpr int words = 4;

  uint32_t* first;

  // The segments below a number.
  __device__ __forceinline__ void reset(uint32_t number) const {
    if (lane_index() < words) first[lane_index()] = lane_index() == 0 ? (1u << number) - 1 : 0;
    __syncwarp();
  }
  __device__ __forceinline__ void add(uint32_t segment) const {
    atomicOr(first + segment / warp_size, 1u << segment % warp_size);
  }
  __device__ __forceinline__ bool has(uint32_t segment) const {
    return first[segment / warp_size] >> segment % warp_size & 1;
  }
  // The number of segments before this one.
  __device__ __forceinline__ uint32_t place(uint32_t segment) const {
    uint32_t count = __popc(first[segment / warp_size] & ((1u << segment % warp_size) - 1));
#pragma unroll 1
    for (uint32_t i = 0; i < segment / warp_size; ++i) count += __popc(first[i]);
    return count;
  }
};

// The same lists, but an entry is a key of 32 bits: the first bits of the squared distance, and the label of the row.
// An exchange of keys takes two instructions instead of six, and lists take half the memory.
//
// A label has the number of a segment, a run of up to 32 rows, and the place of the row in it. The table of segments
// has their first rows. When it is full, the search keeps the segments that are in use and numbers them anew.
//
// Squared distances are compared after a number is added, the lift. Sums of up to 129 lifts span 26 bits. A key has
// the first 20. So the resolution is at least 2^-17 of a sum: relative for large distances, absolute for small
// ones. Sums may be computed with fused operations, because their rounding errors are much smaller. Candidates are in
// the order of their distances if their keys differ by more than one in these 20 bits. A list cannot decide between
// other candidates. In most sets, one of a thousand lists has to. In a lattice every list has to.
template <int K>
struct KeyList {
  static constexpr int batch = K > 32 ? 16 : 8, block = 8, patience = batch * 3 / 2;
  static constexpr uint32_t max_segments = 126;  // so that no row has the label with all bits

  static constexpr uint32_t no_label = ~0u;

  using Item = uint32_t;
  struct alignas(8) Lift {
    float lift;       // infinite: not known yet
    uint32_t offset;  // added to the bits of a sum, so that the keys begin at one unit
  };

  // A column has the keys, the smallest key that was dropped, and the label of the query.
  static constexpr int64_t bytes =
      ((K + 2) * warp_size + max_segments + Segments::words) * static_cast<int64_t>(sizeof(uint32_t)) +
      static_cast<int64_t>(sizeof(Lift));

  uint32_t* first;    // of lane 0
  uint32_t segments;  // their number; above max_segments: the list is lost

  __device__ explicit KeyList(void* memory) : first(static_cast<uint32_t*>(memory)) {}

  __device__ static Item none() { return ~0u; }
  __device__ static Item item(const Lift& lift, float lifted, uint32_t label) {
    return (((bits(lifted) << shared_bits) + lift.offset) & ~labels) | label;
  }
  __device__ static bool has_label(Item item, uint32_t label) { return ((item ^ label) & labels) == 0; }
  __device__ uint32_t row_of(uint32_t label) const { return table()[label / warp_size] + label % warp_size; }
  __device__ void set_own_label(uint32_t label) const { entry(K + 1) = label; }
  __device__ uint32_t own_label() const { return entry(K + 1); }
  __device__ Candidate<float> candidate(Item item) const {
    return Candidate<float>::make(largest2(item), row_of(item & labels) + 1);
  }

  __device__ uint32_t row_plus_one(int lane, int i) const {
    const uint32_t key = first[i * warp_size + lane];
    return key < unit ? 0 : key == none() ? no_row : row_of(key & labels) + 1;
  }
  __device__ Candidate<float> own(int i) const {
    const uint32_t key = entry(i);
    const float lift = this->lift().lift;
    const float sum = from_bits(((key > unit ? key - unit : 0) >> shared_bits & ~(labels >> shared_bits)) + bits(lift));
    const float smallest2 = key == none() ? std::numeric_limits<float>::infinity() : std::fma(sum, 1 - slack, -lift);
    return Candidate<float>::make(std::fmax(smallest2, 0.f), row_plus_one(lane_index(), i));
  }

  __device__ __forceinline__ void reset(int k, bool is_own) {
#pragma unroll 1
    for (int i = 0; i < K; ++i) entry(i) = i < K - k + (is_own ? 1 : 0) ? 0 : none();
    dropped() = none();
    segments = 0;
    set_lift(std::numeric_limits<float>::infinity());
  }

  // Until it is known how far rows may be, the list takes none.
  __device__ bool has_range() const { return lift().lift < std::numeric_limits<float>::infinity(); }
  // reach2: larger than the squared distances of many rows. Rows that are much farther are not collected.
  __device__ __forceinline__ void set_range(float reach2) { set_lift(reach2 * (4 / most_lifts)); }

  __device__ static uint32_t first_label(uint32_t row, uint32_t first_row) { return row - first_row; }
  // Each lane labels at most one segment.
  __device__ bool has_labels(uint32_t rows) const {
    return rows <= warp_size * warp_size && segments + segments_of(rows) <= max_segments;
  }
  __device__ __forceinline__ uint32_t label_rows(uint32_t row, uint32_t rows) {
    const uint32_t place = segments;
    segments += segments_of(rows);
    const auto lane = static_cast<uint32_t>(lane_index());
    if (lane * warp_size < rows) table()[place + lane] = row + lane * warp_size;
    return place * warp_size - row;
  }
  // Rows of a leaf have no labels, so the list misses them.
  __device__ void lose() { segments = max_segments + 1; }
  __device__ bool has_lost_rows() const { return segments > max_segments; }

  __device__ static uint32_t segments_of(uint32_t rows) { return (rows + warp_size - 1) / warp_size; }
  __device__ static uint32_t segment_of(uint32_t label) { return label % unit / warp_size; }
  // The same item in another segment.
  __device__ static uint32_t in_segment(Item item, uint32_t segment) {
    return item == none() ? item : (item & (~labels | (warp_size - 1))) | segment * warp_size;
  }
  // Call a function for each label of this lane's list.
  template <typename Function>
  __device__ __forceinline__ void for_labels(const Function& function) {
#pragma unroll 1
    for (int i = 0; i < K; ++i) function(&entry(i));
    function(&entry(K + 1));
  }
  __device__ Segments used_segments() const { return {table() + max_segments + sizeof(Lift) / sizeof(uint32_t)}; }
  // Keep these segments, renumbered.
  __device__ __forceinline__ void keep(const Segments& used) {
    const auto lane = static_cast<uint32_t>(lane_index());
    __syncwarp();
#pragma unroll 1
    for (uint32_t i = lane; i < max_segments + lane; i += warp_size) {
      const bool is_used = i < max_segments && used.has(i);
      const uint32_t row = is_used ? table()[i] : 0;
      __syncwarp();
      // Its new place is not after its old one.
      if (is_used) table()[used.place(i)] = row;
      __syncwarp();
    }
    segments = used.place(max_segments);
  }

  // In shared memory, because registers are few.
  __device__ const Lift& lift() const { return *reinterpret_cast<Lift*>(table() + max_segments); }
  __device__ static float lifted(const Lift& lift, float distance2) { return distance2 + lift.lift; }
  __device__ float lifted_limit(float distance2) const { return (distance2 + lift().lift) * (1 + slack); }

  // All candidates that the list may still need are within the bound.
  __device__ Candidate<float> bound() const {
    const uint32_t last = entry(K - 1);
    return last == none() ? Candidate<float>::make(lift().lift * most_lifts, no_row)
                          : Candidate<float>::make(largest2(last), no_row - 1);
  }

  // limit2: no neighbour has a larger squared distance.
  __device__ bool is_decided(float limit2) const {
    if (has_lost_rows()) return false;
    const uint32_t last = entry(K - 1);
    return last == none() ? limit2 <= lift().lift * most_lifts : (dropped() | labels) > (last | labels) + unit;
  }

  // If more points than the list holds are at the same place, their rows decide. Without this test, a search among
  // equal points would visit all of them.
  __device__ bool is_lost() const { return dropped() < 3 * unit; }

  __device__ __forceinline__ void absorb(uint32_t* candidates) const {
    network::sort<0, batch>(candidates);
    uint32_t best[K];
#pragma unroll
    for (int i = 0; i < K; ++i) best[i] = entry(i);
    uint32_t smallest = dropped();
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      network::exchange(best[K - 1 - i], candidates[i]);
      smallest = candidates[i] < smallest ? candidates[i] : smallest;
    }
    dropped() = smallest;
    network::bitonic_merge<0, K>(best);
#pragma unroll
    for (int i = 0; i < K; ++i) entry(i) = best[i];
  }

 private:
  static constexpr uint32_t unit = 1u << 12, labels = unit - 1;
  static constexpr int shared_bits = 6;  // the first bits of a float that are the same for all sums, by the lift
  static constexpr float most_lifts = 128, slack = 0x1p-20f;

  __device__ static uint32_t bits(float x) { return static_cast<uint32_t>(__float_as_int(x)); }
  __device__ static float from_bits(uint32_t x) { return __int_as_float(static_cast<int32_t>(x)); }

  // The largest squared distance of candidates that may precede a key: up to one unit more.
  __device__ float largest2(uint32_t key) const {
    const float lift = this->lift().lift;
    return std::fma(from_bits(((key | labels) >> shared_bits) + bits(lift)), 1 + slack, -lift);
  }

  __device__ __forceinline__ void set_lift(float lift) {
    __syncwarp();  // lanes may still read the former one
    if (lane_index() == 0)
      *reinterpret_cast<Lift*>(table() + max_segments) = {lift, unit - (bits(lift) << shared_bits)};
    __syncwarp();
  }

  __device__ uint32_t& entry(int i) const { return first[i * warp_size + lane_index()]; }
  __device__ uint32_t& dropped() const { return entry(K); }
  __device__ uint32_t* table() const { return first + (K + 2) * warp_size; }
};

// The lists of a search.
template <int K, typename T, bool Keyed>
using ShortList = std::conditional_t<Keyed, KeyList<K>, LaneList<K, T>>;

}  // namespace jztree
