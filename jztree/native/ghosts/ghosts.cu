// Which particles of a rank the other ranks need.
//
// Every rank publishes boxes: of its sources, with how many are in each, and of its queries, with the radius that these
// still have to look into. A rank sends what lies within the radius of a box of another rank. Distances are in float64
// and radii are enlarged by what rounding may have taken off, so nothing that is needed is left out.
//
// A block takes particles that are neighbours in z-order. It tests the boxes of all ranks against the one box around
// its particles, a box a thread, and only what is left of them, mostly little or nothing, against each particle or
// leaf, one a thread. That leaves nothing out either: a distance is never larger for a larger box, rounding included.
// All loops are over boxes that all threads of a block look at together, so lanes stay together and loads are
// broadcast.

#include <algorithm>
#include <cstdint>
#include <limits>

#include "common/morton.h"
#include "common/space.h"
#include "common/cuda/arguments.cuh"
#include "common/cuda/compact.cuh"
#include "common/cuda/primitives.cuh"
#include "common/cuda/queue.cuh"
#include "common/cuda/warp.cuh"

namespace jztree {
namespace {

// Boxes [count] in wrapped coordinates; empty ones have low > high.
template <int D, typename T>
struct Boxes {
  const T *lower, *upper;
  int64_t count;

  __device__ bool empty(int64_t i) const { return !(lower[i * D] <= upper[i * D]); }
  __device__ const T* low(int64_t i) const { return lower + i * D; }
  __device__ const T* high(int64_t i) const { return upper + i * D; }
};

template <int D, typename T>
__device__ Space<D> space_in(const Lengths& box) {
  double period[D];
  for (int d = 0; d < D; ++d) period[d] = box[d];
  return Space<D>(period, T{});
}

// The largest of what all threads of a block have.
template <typename T, int Threads>
__device__ T block_max(T value) {
  constexpr int warps = Threads / warp_size;
  __shared__ T found[warps];
  value = warp_max(value);
  __syncthreads();  // whatever was read of the call before
  if (lane_index() == 0) found[threadIdx.x / warp_size] = value;
  __syncthreads();
  for (int warp = 0; warp < warps; ++warp) value = found[warp] > value ? found[warp] : value;
  return value;
}

// A box around what the threads of a block have.
template <int D, typename T>
struct Surrounding {
  T low[D], high[D];

  __device__ Surrounding() {
    for (int d = 0; d < D; ++d) {
      low[d] = std::numeric_limits<T>::infinity();
      high[d] = -low[d];
    }
  }

  __device__ void include(const T* lower, const T* upper) {
    for (int d = 0; d < D; ++d) {
      low[d] = lower[d] < low[d] ? lower[d] : low[d];
      high[d] = upper[d] > high[d] ? upper[d] : high[d];
    }
  }

  __device__ bool empty() const { return !(low[0] <= high[0]); }

  template <int Threads>
  __device__ void unite_block() {
    for (int d = 0; d < D; ++d) {
      high[d] = block_max<T, Threads>(high[d]);
      low[d] = -block_max<T, Threads>(-low[d]);
    }
  }
};

// A short list that the threads of a block write together, in no order that matters.
template <int Room>
struct BlockList {
  int32_t entries[Room];
  int count;

  // All threads of the block call these.
  __device__ void clear() {
    __syncthreads();
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
  }
  __device__ void complete() { __syncthreads(); }

  __device__ void add(int64_t entry) { entries[atomicAdd(&count, 1)] = static_cast<int32_t>(entry); }
};

// Open leaves.

constexpr int box_threads = 256, leaf_threads = 128, leaf_list = 1024;

// The queries of one rank, as leaves and as the boxes that it publishes.
template <int D, typename T>
struct OpenSearch {
  Lengths box;
  Boxes<D, T> leaves, own, sources;
  const int32_t *leaf_splits, *own_splits, *source_counts;
  const int32_t* rank;
  int64_t k, per_rank, queries;
  int64_t enough;  // so many sources are all that a query needs
  // Found on the way: the last radius of each query, what each box and each leaf needs, and which leaves are open.
  T* last_radius;
  double *bounds, *needed;
  int32_t* open;

  // Rows of an item, inside the array whatever the splits are.
  __device__ int64_t begin_of(const int32_t* splits, int64_t i) const {
    int64_t row = splits[i];
    return row < 0 ? 0 : row > queries ? queries : row;
  }
};

// rows: where each query's radii are; null: at its place.
template <int D, typename T>
__global__ void gather_last_radii(OpenSearch<D, T> search, const T* radius, const int32_t* rows) {
  int64_t query = thread_index();
  if (query >= search.queries) return;
  int64_t row = rows ? rows[query] : query;
  if (row >= 0 && row < search.queries) search.last_radius[query] = radius[row * search.k + search.k - 1];
}

// The bits of a distance from 0 on, which are ordered as the distances are.
__device__ inline uint64_t distance_bits(double distance) {
  return static_cast<uint64_t>(__double_as_longlong(distance));
}

// A radius within which every query of a box surely finds enough sources: that in which boxes hold so many, if it is
// smaller than what is known. Found digit by digit from the top, by counting the sources of each digit.
template <int D, typename T>
__device__ double bound_of_box(const OpenSearch<D, T>& search, const Space<D>& space, int64_t i, double known) {
  constexpr int digit_bits = 8, digits = 1 << digit_bits;
  static_assert(digits == box_threads, "every thread has a digit to clear");
  using Sum = unsigned long long;
  __shared__ Sum sums[digits], wanted;
  __shared__ int chosen;
  uint64_t prefix = 0, mask = 0;
  if (threadIdx.x == 0) wanted = static_cast<Sum>(search.enough);
  for (int shift = 64 - digit_bits; shift >= 0; shift -= digit_bits) {
    sums[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t s = threadIdx.x; s < search.sources.count; s += box_threads) {
      int32_t count = search.source_counts[s];
      if (count == 0) continue;
      double reach = space.reach(search.own.low(i), search.own.high(i), search.sources.low(s), search.sources.high(s));
      // Radii are found in the precision of T, in which more sources may be at the same distance.
      reach *= 1 + 32 * static_cast<double>(std::numeric_limits<T>::epsilon());
      uint64_t bits = distance_bits(reach);
      if (reach < known && (bits & mask) == prefix)
        atomicAdd(&sums[bits >> shift & (digits - 1)], static_cast<Sum>(static_cast<int64_t>(count)));
    }
    __syncthreads();
    if (threadIdx.x < warp_size) {
      // Every lane has a run of digits.
      constexpr int run = digits / warp_size;
      int lane = lane_index();
      Sum mine = 0;
      for (int digit = lane * run; digit < (lane + 1) * run; ++digit) mine += sums[digit];
      Sum until = warp_inclusive_sum(mine), still = wanted;
      unsigned enough = __ballot_sync(all_lanes, until >= still);
      if (enough == 0) {
        if (lane == 0) chosen = -1;
      } else if (lane == __ffs(static_cast<int>(enough)) - 1) {
        int digit = lane * run;
        for (still -= until - mine; sums[digit] < still; ++digit) still -= sums[digit];
        chosen = digit;
        wanted = still;
      }
    }
    __syncthreads();
    if (chosen < 0) return known;
    prefix |= static_cast<uint64_t>(chosen) << shift;
    mask |= static_cast<uint64_t>(digits - 1) << shift;
  }
  return __longlong_as_double(static_cast<long long>(prefix));
}

// A block a box of the rank.
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
  double bound = bound_of_box(search, space, i, space.enlarged(largest));
  if (threadIdx.x == 0) search.bounds[i] = bound;
}

// The radius that a leaf with rows needs to look into.
template <int D, typename T>
__device__ double needed_by_leaf(const OpenSearch<D, T>& search, const Space<D>& space, int64_t leaf) {
  double most = 0;
  // A leaf may reach into several of the rank's boxes.
  for (int64_t i = item_over(search.own_splits, search.own.count, search.leaf_splits[leaf]); i < search.own.count;
       ++i) {
    if (search.own_splits[i] >= search.leaf_splits[leaf + 1]) break;
    if (search.own_splits[i] < search.own_splits[i + 1] && search.bounds[i] > most) most = search.bounds[i];
  }
  T largest = T{-1};
  int64_t end = search.begin_of(search.leaf_splits, leaf + 1);
  for (int64_t q = search.begin_of(search.leaf_splits, leaf); q < end; ++q)
    largest = search.last_radius[q] > largest ? search.last_radius[q] : largest;
  double known = space.enlarged(largest);
  return known < most ? known : most;
}

// A thread a leaf: whether a source of another rank may be within its radius.
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

// A block a box of the rank: the largest radius that an open leaf in it needs, -1 if there is none.
template <int D, typename T>
__global__ void wanted_by_boxes(OpenSearch<D, T> search, T* wanted) {
  int64_t i = blockIdx.x, leaves = search.leaves.count;
  T most = T{-1};
  if (search.own_splits[i] != search.own_splits[i + 1]) {
    int64_t first = item_over(search.leaf_splits, leaves, search.own_splits[i]);
    for (int64_t leaf = first + threadIdx.x; leaf < leaves; leaf += box_threads) {
      if (search.leaf_splits[leaf] >= search.own_splits[i + 1]) break;
      if (!search.open[leaf]) continue;
      // Rounded up, so that it is not below the radius in float64.
      T needed = static_cast<T>(search.needed[leaf]) * (1 + 4 * std::numeric_limits<T>::epsilon());
      most = needed > most ? needed : most;
    }
  }
  most = block_max<T, box_threads>(most);
  if (threadIdx.x == 0) wanted[i] = most;
}

template <int D>
bool fits(const ffi::AnyBuffer& buffer, const ffi::AnyBuffer& like, int64_t rows, int64_t columns = D) {
  return buffer.element_type() == like.element_type() && static_cast<int64_t>(buffer.element_count()) == rows * columns;
}

// Which leaves of queries may have neighbours on other ranks, and the radius that each of the rank's boxes still needs.
ffi::Error open_leaves(cudaStream_t stream, DeviceMemory scratch, ffi::Buffer<ffi::S32> leaf_splits,
                       ffi::AnyBuffer leaf_lower, ffi::AnyBuffer leaf_upper, ffi::Buffer<ffi::S32> own_splits,
                       ffi::AnyBuffer own_lower, ffi::AnyBuffer own_upper, ffi::AnyBuffer radius,
                       ffi::Buffer<ffi::S32> rows, ffi::AnyBuffer source_lower, ffi::AnyBuffer source_upper,
                       ffi::Buffer<ffi::S32> source_counts, ffi::Buffer<ffi::S32> rank, ffi::AnyBuffer box,
                       ffi::Result<ffi::Buffer<ffi::S32>> open, ffi::Result<ffi::AnyBuffer> wanted, int64_t ranks,
                       int64_t enough) {
  return dispatch<max_dims>(leaf_lower, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    Lengths lengths;
    int64_t leaves = leaf_lower.dimensions()[0], own = static_cast<int64_t>(own_splits.element_count()) - 1;
    int64_t sources = static_cast<int64_t>(source_counts.element_count());
    auto shape = radius.dimensions();
    if (!read_lengths(box, D, &lengths) || static_cast<int64_t>(leaf_splits.element_count()) != leaves + 1 ||
        !fits<D>(leaf_upper, leaf_lower, leaves) || !fits<D>(own_lower, leaf_lower, own) ||
        !fits<D>(own_upper, leaf_lower, own) || !fits<D>(source_lower, leaf_lower, sources) ||
        !fits<D>(source_upper, leaf_lower, sources) || shape.size() != 2 || shape[1] < 1 ||
        !fits<D>(radius, leaf_lower, shape[0], shape[1]) ||
        (rows.element_count() != 0 && static_cast<int64_t>(rows.element_count()) != shape[0]) || ranks < 1 ||
        sources % ranks != 0 || static_cast<int64_t>(open->element_count()) != leaves ||
        static_cast<int64_t>(wanted->element_count()) != own)
      return invalid("open_leaves was called with arrays that do not fit together.");
    Queue queue(stream, scratch);
    OpenSearch<D, T> search{lengths,
                            {leaf_lower.typed_data<T>(), leaf_upper.typed_data<T>(), leaves},
                            {own_lower.typed_data<T>(), own_upper.typed_data<T>(), own},
                            {source_lower.typed_data<T>(), source_upper.typed_data<T>(), sources},
                            leaf_splits.typed_data(),
                            own_splits.typed_data(),
                            source_counts.typed_data(),
                            rank.typed_data(),
                            shape[1],
                            sources / ranks,
                            shape[0],
                            enough,
                            queue.scratch<T>(shape[0]),
                            queue.scratch<double>(own),
                            queue.scratch<double>(leaves),
                            open->typed_data()};
    queue.launch_over(shape[0], gather_last_radii<D, T>, search, radius.typed_data<T>(), listed(rows));
    queue.launch(own, box_threads, 0, bound_boxes<D, T>, search);
    queue.launch((leaves + leaf_threads - 1) / leaf_threads, leaf_threads, 0, open_by_leaf<D, T>, search);
    queue.launch(own, box_threads, 0, wanted_by_boxes<D, T>, search, wanted->typed_data<T>());
    return ffi::Error::Success();
  });
}

// Ghosts.

// Around all that a rank wants. limit2: its largest squared radius, negative if it wants nothing.
template <int D, typename T>
struct Demand {
  Surrounding<D, T> box;
  double limit2;
};

template <int D, typename T>
struct GhostSelection {
  Lengths box;
  const T* pos;
  Count num;
  const int32_t* splits;  // of the blocks of rows that are looked through
  int64_t blocks;
  Boxes<D, T> wanted;
  const T* radius;  // of each wanted box; negative: it wants nothing
  const int32_t* me;
  bool lower_only;
  int64_t ranks, per_rank, tiles;
  Demand<D, T>* demands;
  int64_t* places;  // rank by rank, tile by tile: how many rows are wanted, then where these are put

  __device__ int64_t first() const { return splits[0] < 0 ? 0 : splits[0]; }
  __device__ int64_t last() const { return smaller<int64_t>(splits[blocks], num()); }

  __device__ double limit2(const Space<D>& space, int64_t i) const {
    double limit = space.enlarged(radius[i]);
    return limit * limit;
  }

  __device__ void wrapped(int64_t row, T* x) const {
    for (int d = 0; d < D; ++d) x[d] = wrap(pos[row * D + d], box[d]);
  }
};

// A warp a rank. The rank itself, and with lower_only those above it, want nothing.
template <int D, typename T>
__global__ void find_demands(GhostSelection<D, T> selection) {
  int64_t rank = thread_index() / warp_size;
  if (rank >= selection.ranks) return;
  Space<D> space = space_in<D, T>(selection.box);
  Demand<D, T> demand{{}, -1};
  if (rank < selection.me[0] || (rank > selection.me[0] && !selection.lower_only))
    for (int64_t i = rank * selection.per_rank + lane_index(); i < (rank + 1) * selection.per_rank; i += warp_size) {
      if (!(selection.radius[i] >= 0) || selection.wanted.empty(i)) continue;
      demand.box.include(selection.wanted.low(i), selection.wanted.high(i));
      double limit2 = selection.limit2(space, i);
      demand.limit2 = limit2 > demand.limit2 ? limit2 : demand.limit2;
    }
  for (int d = 0; d < D; ++d) {
    demand.box.low[d] = warp_min(demand.box.low[d]);
    demand.box.high[d] = warp_max(demand.box.high[d]);
  }
  demand.limit2 = warp_max(demand.limit2);
  if (lane_index() == 0) selection.demands[rank] = demand;
}

// A tile of rows, looked through by one block.
template <int D, typename T>
struct GhostTile {
  const GhostSelection<D, T>& selection;
  Space<D> space;
  int64_t tile, first, last;  // rows
  Surrounding<D, T> box;

  __device__ explicit GhostTile(const GhostSelection<D, T>& from)
      : selection(from), space(space_in<D, T>(from.box)), tile(blockIdx.x) {
    first = larger<int64_t>(tile * compact_rows, selection.first());
    last = smaller<int64_t>((tile + 1) * compact_rows, selection.last());
    for (int item = 0; item < compact_items; ++item) {
      if (!holds(compact_row(tile, item))) continue;
      T x[D];
      selection.wrapped(compact_row(tile, item), x);
      box.include(x, x);
    }
    box.template unite_block<compact_threads>();
  }

  __device__ bool holds(int64_t row) const { return row >= first && row < last; }

  __device__ bool may_serve(int64_t rank) const {
    const Demand<D, T>& demand = selection.demands[rank];
    return demand.limit2 >= 0 && space.gap2(box.low, box.high, demand.box.low, demand.box.high) <= demand.limit2;
  }

  __device__ bool is_wanted(int64_t row, const BlockList<compact_threads>& boxes) const {
    T x[D];
    selection.wrapped(row, x);
    for (int c = 0; c < boxes.count; ++c) {
      int64_t i = boxes.entries[c];
      if (space.gap2(x, x, selection.wanted.low(i), selection.wanted.high(i)) <= selection.limit2(space, i))
        return true;
    }
    return false;
  }

  // Which of this thread's rows a rank wants, a bit an item. All threads of the block take part.
  __device__ unsigned wanted_by(int64_t rank, BlockList<compact_threads>& near) const {
    unsigned chosen = 0;
    int64_t end = (rank + 1) * selection.per_rank;
    for (int64_t begin = rank * selection.per_rank; begin < end; begin += compact_threads) {
      int64_t i = begin + threadIdx.x;
      near.clear();
      if (i < end && selection.radius[i] >= 0 && !selection.wanted.empty(i) &&
          space.gap2(box.low, box.high, selection.wanted.low(i), selection.wanted.high(i)) <=
              selection.limit2(space, i))
        near.add(i);
      near.complete();
      for (int item = 0; near.count > 0 && item < compact_items; ++item) {
        int64_t row = compact_row(tile, item);
        if (!(chosen >> item & 1) && holds(row) && is_wanted(row, near)) chosen |= 1u << item;
      }
    }
    return chosen;
  }
};

// Calls work(rank) with all threads of a block for the ranks that pass the test, which each thread does for another
// one.
template <typename Test, typename Work>
__device__ void each_rank(int64_t ranks, const Test& test, const Work& work) {
  __shared__ BlockList<compact_threads> passed;
  for (int64_t first = 0; first < ranks; first += compact_threads) {
    passed.clear();
    if (first + threadIdx.x < ranks && test(first + threadIdx.x)) passed.add(first + threadIdx.x);
    passed.complete();
    for (int i = 0; i < passed.count; ++i) work(int64_t{passed.entries[i]});
  }
}

// How many rows of a tile each rank is to have. All of them are 0 before.
template <int D, typename T>
__global__ void count_ghosts(GhostSelection<D, T> selection) {
  __shared__ BlockList<compact_threads> near;
  GhostTile<D, T> tile(selection);
  int64_t* counts = selection.places + blockIdx.x;
  if (threadIdx.x == 0) {
    int64_t own = smaller<int64_t>(selection.num() - tile.tile * compact_rows, compact_rows), me = selection.me[0];
    if (own > 0 && me >= 0 && me < selection.ranks) counts[me * selection.tiles] = own;
  }
  if (tile.box.empty()) return;
  each_rank(
      selection.ranks, [&](int64_t rank) { return tile.may_serve(rank); },
      [&](int64_t rank) {
        int places[compact_items];
        int total = compact_places(tile.wanted_by(rank, near), places);
        if (threadIdx.x == 0) counts[rank * selection.tiles] = total;
      });
}

// Does the tests of the tile again for the ranks that want some of its rows, but not all.
template <int D, typename T>
__global__ void list_ghosts(GhostSelection<D, T> selection, int64_t room, int32_t* order) {
  __shared__ BlockList<compact_threads> near;
  GhostTile<D, T> tile(selection);
  const int64_t* starts = selection.places + blockIdx.x;
  each_rank(
      selection.ranks,
      [&](int64_t rank) { return starts[rank * selection.tiles] < starts[rank * selection.tiles + 1]; },
      [&](int64_t rank) {
        unsigned chosen = 0;
        int64_t start = starts[rank * selection.tiles], count = starts[rank * selection.tiles + 1] - start;
        if (rank == selection.me[0] || count == tile.last - tile.first) {
          int64_t first = rank == selection.me[0] ? 0 : tile.first;
          int64_t last = rank == selection.me[0] ? selection.num() : tile.last;
          for (int item = 0; item < compact_items; ++item) {
            int64_t row = compact_row(tile.tile, item);
            if (row >= first && row < last) chosen |= 1u << item;
          }
        } else {
          chosen = tile.wanted_by(rank, near);
        }
        int places[compact_items];
        compact_places(chosen, places);
        for (int item = 0; item < compact_items; ++item)
          if ((chosen >> item & 1) && start + places[item] < room)
            order[start + places[item]] = static_cast<int32_t>(compact_row(tile.tile, item));
      });
}

// starts: of all ranks and tiles, and the end.
__global__ void finish_ghosts(const int64_t* starts, int64_t ranks, int64_t tiles, int64_t room, int32_t* order,
                              int32_t* counts) {
  int64_t i = thread_index();
  if (i < room && i >= starts[ranks * tiles]) order[i] = -1;
  if (i < ranks) counts[i] = static_cast<int32_t>(starts[(i + 1) * tiles] - starts[i * tiles]);
}

// The rows that each rank is to have: to itself all, to another those within the radius of its boxes; with lower_only
// nothing to higher ranks. Counts are right even if the rows do not all fit into the order.
ffi::Error select_ghosts(cudaStream_t stream, DeviceMemory scratch, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num,
                         ffi::Buffer<ffi::S32> splits, ffi::AnyBuffer lower, ffi::AnyBuffer upper,
                         ffi::AnyBuffer wanted_lower, ffi::AnyBuffer wanted_upper, ffi::AnyBuffer radius,
                         ffi::Buffer<ffi::S32> rank, ffi::AnyBuffer box, ffi::Result<ffi::Buffer<ffi::S32>> order,
                         ffi::Result<ffi::Buffer<ffi::S32>> counts, bool lower_only) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    Lengths lengths;
    int64_t blocks = static_cast<int64_t>(splits.element_count()) - 1, rows = pos.dimensions()[0];
    int64_t wanted = static_cast<int64_t>(radius.element_count()),
            ranks = static_cast<int64_t>(counts->element_count());
    if (!read_lengths(box, D, &lengths) || blocks < 0 || !fits<D>(lower, pos, blocks) || !fits<D>(upper, pos, blocks) ||
        !fits<D>(wanted_lower, pos, wanted) || !fits<D>(wanted_upper, pos, wanted) ||
        !fits<D>(radius, pos, wanted, 1) || ranks < 1 || wanted % ranks != 0)
      return invalid("select_ghosts was called with arrays that do not fit together.");
    Queue queue(stream, scratch);
    int64_t tiles = compact_tiles(rows), room = static_cast<int64_t>(order->element_count());
    GhostSelection<D, T> selection{lengths,
                                   pos.typed_data<T>(),
                                   read_count(num, rows),
                                   splits.typed_data(),
                                   blocks,
                                   {wanted_lower.typed_data<T>(), wanted_upper.typed_data<T>(), wanted},
                                   radius.typed_data<T>(),
                                   rank.typed_data(),
                                   lower_only,
                                   ranks,
                                   wanted / ranks,
                                   tiles,
                                   queue.scratch<Demand<D, T>>(ranks),
                                   queue.scratch<int64_t>(ranks * tiles + 1)};
    queue.fill_bytes(selection.places, 0, ranks * tiles + 1);
    queue.launch_warps(ranks, find_demands<D, T>, selection);
    queue.launch(tiles, compact_threads, 0, count_ghosts<D, T>, selection);
    exclusive_sum(queue, selection.places, selection.places, ranks * tiles + 1);
    queue.launch(tiles, compact_threads, 0, list_ghosts<D, T>, selection, room, order->typed_data());
    queue.launch_over(std::max(room, ranks), finish_ghosts, selection.places, ranks, tiles, room, order->typed_data(),
                      counts->typed_data());
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_open_leaves, open_leaves, "ranks", "enough");
JZTREE_HANDLER(jztree_select_ghosts, select_ghosts, "lower_only");

}  // namespace jztree
