#include <cstdint>
#include <limits>

#include "block_boxes.cuh"
#include "common/cuda/context.cuh"
#include "open_leaves.h"

namespace jztree {
namespace {

constexpr int box_threads = 256, leaf_threads = 128, leaf_list = 1024;

// The queries of one rank, as leaves and as its published boxes.
template <int D, typename T>
struct OpenSearch {
  Lengths box;
  Boxes<D, T> leaves, own, sources, close;
  const int32_t *leaf_splits, *own_splits, *source_counts, *close_counts;
  const int32_t* rank;
  int64_t k, per_rank, queries;
  int64_t enough;  // the number of sources that a query needs
  // Intermediate results: the last radius of each query, the radius that each box and each leaf needs, and the open
  // leaves.
  T* last_radius;
  double *bounds, *needed;
  int32_t* open;

  // First row of an item, clipped to the array for any splits.
  __device__ int64_t begin_of(const int32_t* splits, int64_t i) const {
    int64_t row = splits[i];
    return row < 0 ? 0 : row > queries ? queries : row;
  }
};

// rows: the row of each query's radii; null: its index.
template <int D, typename T>
__global__ void gather_last_radii(OpenSearch<D, T> search, const T* radius, const int32_t* rows) {
  int64_t query = thread_index();
  if (query >= search.queries) return;
  int64_t row = rows ? rows[query] : query;
  if (row >= 0 && row < search.queries) search.last_radius[query] = radius[row * search.k + search.k - 1];
}

// The bits of a non-negative distance, which sort like the distances.
__device__ inline uint64_t distance_bits(double distance) {
  return static_cast<uint64_t>(__double_as_longlong(distance));
}

// A radius within which every query of a box surely finds enough sources. It is the radius within which boxes hold
// enough sources, or `known` if that is smaller. It is found digit by digit from the top, by counting the sources of
// each digit.
template <int D, typename T>
__device__ double bound_of_box(const OpenSearch<D, T>& search, const Space<D>& space, int64_t i,
                               const Boxes<D, T>& sources, const int32_t* counts, double upper_limit) {
  constexpr int digit_bits = 8, digits = 1 << digit_bits;
  static_assert(digits == box_threads, "every thread has a digit to clear");
  using Sum = unsigned long long;
  __shared__ Sum sums[digits], wanted;
  __shared__ int crossing;
  uint64_t prefix = 0, mask = 0;
  if (threadIdx.x == 0) wanted = static_cast<Sum>(search.enough);
  for (int shift = 64 - digit_bits; shift >= 0; shift -= digit_bits) {
    sums[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t s = threadIdx.x; s < sources.count; s += box_threads) {
      int32_t count = counts[s];
      if (count == 0) continue;
      double reach = space.reach(search.own.low(i), search.own.high(i), sources.low(s), sources.high(s));
      // Radii are found in the precision of T, in which more sources may be at the same distance.
      reach *= 1 + 32 * static_cast<double>(std::numeric_limits<T>::epsilon());
      uint64_t bits = distance_bits(reach);
      if (reach < upper_limit && (bits & mask) == prefix)
        atomicAdd(&sums[bits >> shift & (digits - 1)], static_cast<Sum>(static_cast<int64_t>(count)));
    }
    __syncthreads();
    if (threadIdx.x < warp_size) {
      // Every lane processes a run of digits.
      constexpr int run = digits / warp_size;
      int lane = lane_index();
      Sum mine = 0;
      for (int digit = lane * run; digit < (lane + 1) * run; ++digit) mine += sums[digit];
      Sum until = warp_inclusive_sum(mine), still = wanted;
      unsigned enough = __ballot_sync(all_lanes, until >= still);
      __syncwarp();  // all lanes have read `wanted`
      if (enough == 0) {
        if (lane == 0) crossing = -1;
      } else if (lane == __ffs(static_cast<int>(enough)) - 1) {
        int digit = lane * run;
        for (still -= until - mine; sums[digit] < still; ++digit) still -= sums[digit];
        crossing = digit;
        wanted = still;
      }
    }
    __syncthreads();
    if (crossing < 0) return upper_limit;
    prefix |= static_cast<uint64_t>(crossing) << shift;
    mask |= static_cast<uint64_t>(digits - 1) << shift;
  }
  return __longlong_as_double(static_cast<long long>(prefix));
}

// One block per box of the rank.
template <int D, typename T>
__global__ void bound_boxes(OpenSearch<D, T> search) {
  int64_t i = blockIdx.x, begin = search.begin_of(search.own_splits, i),
          end = search.begin_of(search.own_splits, i + 1);
  if (begin >= end) return;
  T largest = T{-1};
  for (int64_t q = begin + threadIdx.x; q < end; q += box_threads)
    largest = search.last_radius[q] > largest ? search.last_radius[q] : largest;
  largest = block_max<T, box_threads>(largest);
  Space<D> space = space_in<D, T>(search.box);
  double bound = bound_of_box(search, space, i, search.close, search.close_counts, space.enlarged(largest));
  bound = bound_of_box(search, space, i, search.sources, search.source_counts, bound);
  if (threadIdx.x == 0) search.bounds[i] = bound;
}

// The search radius of a non-empty leaf.
template <int D, typename T>
__device__ double needed_by_leaf(const OpenSearch<D, T>& search, const Space<D>& space, int64_t leaf) {
  double box_bound = 0;
  // A leaf may reach into several of the rank's boxes.
  for (int64_t i = item_over(search.own_splits, search.own.count, search.leaf_splits[leaf]); i < search.own.count;
       ++i) {
    if (search.own_splits[i] >= search.leaf_splits[leaf + 1]) break;
    if (search.own_splits[i] < search.own_splits[i + 1] && search.bounds[i] > box_bound) box_bound = search.bounds[i];
  }
  T largest = T{-1};
  int64_t end = search.begin_of(search.leaf_splits, leaf + 1);
  for (int64_t q = search.begin_of(search.leaf_splits, leaf); q < end; ++q)
    largest = search.last_radius[q] > largest ? search.last_radius[q] : largest;
  double leaf_radius = space.enlarged(largest);
  return leaf_radius < box_bound ? leaf_radius : box_bound;
}

// One thread per leaf: whether a source of another rank may be within its radius.
template <int D, typename T>
__global__ void open_by_leaf(OpenSearch<D, T> search) {
  __shared__ BlockList<leaf_list> near;
  int64_t leaf = thread_index();
  bool used = leaf < search.leaves.count && search.leaf_splits[leaf] != search.leaf_splits[leaf + 1], found = false;
  Space<D> space = space_in<D, T>(search.box);
  Surrounding<D, T> all;
  double needed = 0, limit2 = -1;
  if (used) {
    needed = needed_by_leaf(search, space, leaf);
    limit2 = needed * needed;
    all.include(search.leaves.low(leaf), search.leaves.high(leaf));
  }
  all.template unite_block<leaf_threads>();
  double largest2 = block_max<double, leaf_threads>(limit2);
  int64_t own_begin = search.rank[0] * search.per_rank, own_end = own_begin + search.per_rank;
  for (int64_t first = 0; largest2 >= 0 && first < search.sources.count; first += leaf_list) {
    int64_t end = smaller(first + leaf_list, search.sources.count);
    near.clear();
    for (int64_t s = first + threadIdx.x; s < end; s += leaf_threads)
      if ((s < own_begin || s >= own_end) && search.source_counts[s] > 0 &&
          space.gap2(all.low, all.high, search.sources.low(s), search.sources.high(s)) <= largest2)
        near.add(s);
    near.complete();
    for (int c = 0; used && !found && c < near.count; ++c) {
      int64_t s = near.entries[c];
      found = space.gap2(search.leaves.low(leaf), search.leaves.high(leaf), search.sources.low(s),
                         search.sources.high(s)) <= limit2;
    }
  }
  if (leaf >= search.leaves.count) return;
  search.open[leaf] = found;
  search.needed[leaf] = needed;
}

// One block per box of the rank: the largest radius that an open leaf in it needs, or -1 without open leaves.
template <int D, typename T>
__global__ void wanted_by_boxes(OpenSearch<D, T> search, T* wanted) {
  int64_t i = blockIdx.x, leaves = search.leaves.count;
  T largest = T{-1};
  if (search.own_splits[i] != search.own_splits[i + 1]) {
    int64_t first = item_over(search.leaf_splits, leaves, search.own_splits[i]);
    for (int64_t leaf = first + threadIdx.x; leaf < leaves; leaf += box_threads) {
      if (search.leaf_splits[leaf] >= search.own_splits[i + 1]) break;
      if (!search.open[leaf]) continue;
      // Rounded up, so that it is not below the radius in float64.
      T needed = static_cast<T>(search.needed[leaf]) * (1 + 4 * std::numeric_limits<T>::epsilon());
      largest = needed > largest ? needed : largest;
    }
  }
  largest = block_max<T, box_threads>(largest);
  if (threadIdx.x == 0) wanted[i] = largest;
}

template <int D, typename T>
void open_leaves(Queue& queue, const OpenLeaves<D, T>& in) {
  int64_t leaves = in.leaves.count, own = in.own.count, queries = in.queries();
  OpenSearch<D, T> search{in.box,
                          in.leaves,
                          in.own,
                          in.sources,
                          in.close,
                          in.leaves.splits,
                          in.own.splits,
                          in.source_counts,
                          in.close_counts,
                          in.rank,
                          in.k(),
                          in.sources.per_rank,
                          queries,
                          in.enough,
                          queue.scratch<T>(queries),
                          queue.scratch<double>(own),
                          queue.scratch<double>(leaves),
                          in.open};
  queue.launch_over(queries, gather_last_radii<D, T>, search, in.radius, in.rows);
  queue.launch(own, box_threads, 0, bound_boxes<D, T>, search);
  queue.launch((leaves + leaf_threads - 1) / leaf_threads, leaf_threads, 0, open_by_leaf<D, T>, search);
  queue.launch(own, box_threads, 0, wanted_by_boxes<D, T>, search, in.wanted);
}

}  // namespace

JZTREE_KERNEL(open_leaves, OpenLeaves);

}  // namespace jztree
