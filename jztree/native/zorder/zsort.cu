// One pass computes the first half of each key; a stable radix sort (CUB) brings the rows into order. For nearly every
// set, this is enough. Runs of equal first halves are then sorted by the second halves: short ones by one thread each,
// all at once. Long runs, which occur if an outlier makes the domain so large that a cell holds more particles, need a
// merge sort. Its passes are always launched, because only the GPU knows about long runs. Without long runs, they
// return at once. A pass merges 16 sorted blocks at a time, which keeps the number of passes low.
//
// The order is the same as on the CPU: by key, then the bits of the coordinates, then place. Non-finite rows follow all
// others, and rows from `num` on are last.

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/cuda/context.cuh"
#include "common/cuda/keys.cuh"
#include "common/cuda/primitives.cuh"
#include "common/scale.h"
#include "zsort.h"

namespace jztree {
namespace {

// For rows without a key. The last cell has the same key; a comparison distinguishes the two.
constexpr uint64_t no_key = ~uint64_t{0};
// Runs of equal first halves up to this length are sorted by the thread that finds them.
constexpr int64_t short_run = 32;
constexpr int64_t merge_ways = 16;

// An element of the order.
struct Entry {
  uint64_t sort_key;
  uint32_t row;
};

template <int D, typename T>
struct Order {
  const T* pos;
  Count num;
  const KeyGrid<D>* grid;

  __device__ const T* at(uint32_t row) const { return pos + static_cast<int64_t>(row) * D; }
  __device__ MortonKey key(uint32_t row) const { return Morton<D>::key(*grid, at(row)); }

  __device__ uint64_t sort_key(uint32_t row) const {
    if (row >= num() || !is_finite_row<D>(at(row))) return no_key;
    uint64_t high = Morton<D>::high(*grid, at(row));
    return high < no_key ? high : no_key - 1;
  }

  __device__ bool before(const Entry& a, const Entry& b) const {
    if (a.sort_key != b.sort_key) return a.sort_key < b.sort_key;
    if (a.sort_key == no_key) return a.row < b.row;
    MortonKey key_a = key(a.row), key_b = key(b.row);
    if (!(key_a == key_b)) return key_a < key_b;
    BitOrder<D> bits_a(*grid, at(a.row)), bits_b(*grid, at(b.row));
    return bits_a == bits_b ? a.row < b.row : bits_a < bits_b;
  }
};

// The order under construction: sort keys and rows, and equally large work arrays.
struct Buffers {
  uint64_t *keys, *other_keys;
  uint32_t *rows, *other_rows;
  int64_t n;
};

template <int D, typename T>
__global__ void find_sort_keys(Order<D, T> order, Buffers buffers, int32_t* long_runs) {
  int64_t i = thread_index();
  if (i == 0) *long_runs = 0;
  if (i >= buffers.n) return;
  uint32_t row = static_cast<uint32_t>(i);
  buffers.rows[i] = row;
  buffers.keys[i] = order.sort_key(row);
}

// Each thread sorts the run of equal sort keys that starts at its place, if it is short; long_runs: set if any run is
// not.
template <int D, typename T>
__global__ void sort_short_runs(Order<D, T> order, Buffers buffers, int32_t* long_runs) {
  const uint64_t* keys = buffers.keys;
  uint32_t* rows = buffers.rows;
  int64_t begin = thread_index(), n = buffers.n;
  if (begin + 1 >= n) return;
  uint64_t key = keys[begin];
  if (key == no_key || keys[begin + 1] != key || (begin > 0 && keys[begin - 1] == key)) return;
  int64_t end = begin + 2;
  while (end < n && end - begin <= short_run && keys[end] == key) ++end;
  if (end - begin > short_run) {
    atomicOr(long_runs, 1);
    return;
  }
  for (int64_t i = begin + 1; i < end; ++i) {
    Entry entry{key, rows[i]};
    int64_t place = i;
    for (; place > begin && order.before(entry, Entry{key, rows[place - 1]}); --place) rows[place] = rows[place - 1];
    rows[place] = entry.row;
  }
}

// The number of the sorted entries [begin, end) that are before another.
template <int D, typename T>
__device__ int64_t entries_before(const Order<D, T>& order, const Buffers& buffers, int64_t begin, int64_t end,
                                  const Entry& entry) {
  auto before = [&](int64_t i) { return order.before(Entry{buffers.keys[i], buffers.rows[i]}, entry); };
  // Most blocks are already in order relative to each other.
  if (begin == end || !before(begin)) return 0;
  if (before(end - 1)) return end - begin;
  int64_t first = begin, last = end;
  while (first < last) {
    int64_t middle = (first + last) / 2;
    if (before(middle)) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first - begin;
}

// Kernels that usually return at once are launched with about as many blocks as a GPU runs at the same time, because
// even an idle block takes time. So a thread processes several entries.
constexpr int idle_threads = 256;
constexpr int64_t most_idle_blocks = 4096;

__device__ int64_t threads_launched() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

template <typename... Parameters, typename... Arguments>
void launch_if_needed(Queue& queue, int64_t count, void (*kernel)(Parameters...), const Arguments&... arguments) {
  queue.launch(std::min(most_idle_blocks, (count + idle_threads - 1) / idle_threads), idle_threads, 0, kernel,
               arguments...);
}

// An entry's place is the number of entries before it in each block.
template <int D, typename T>
__device__ void merge_entry(const Order<D, T>& order, const Buffers& buffers, int64_t block, int64_t i) {
  Entry entry{buffers.keys[i], buffers.rows[i]};
  int64_t own = i / block, first = own / merge_ways * merge_ways, place = first * block + i % block;
  for (int64_t other = first; other < first + merge_ways && other * block < buffers.n; ++other) {
    int64_t end = (other + 1) * block < buffers.n ? (other + 1) * block : buffers.n;
    if (other != own) place += entries_before<D>(order, buffers, other * block, end, entry);
  }
  buffers.other_keys[place] = entry.sort_key;
  buffers.other_rows[place] = entry.row;
}

// Merge every merge_ways sorted blocks into one, from the buffers to the others.
template <int D, typename T>
__global__ void merge_blocks(Order<D, T> order, Buffers buffers, int64_t block, const int32_t* needed) {
  if (*needed == 0) return;
  for (int64_t i = thread_index(); i < buffers.n; i += threads_launched()) merge_entry<D>(order, buffers, block, i);
}

__global__ void copy_back(Buffers buffers, const int32_t* needed) {
  if (*needed == 0) return;
  for (int64_t i = thread_index(); i < buffers.n; i += threads_launched()) {
    buffers.keys[i] = buffers.other_keys[i];
    buffers.rows[i] = buffers.other_rows[i];
  }
}

// Sort the entries if necessary.
template <int D, typename T>
void merge_sort(Queue& queue, const Order<D, T>& order, const Buffers& buffers, const int32_t* needed) {
  Buffers from = buffers;
  for (int64_t block = 1; block < buffers.n; block *= merge_ways) {
    launch_if_needed(queue, buffers.n, merge_blocks<D, T>, order, from, block, needed);
    std::swap(from.keys, from.other_keys);
    std::swap(from.rows, from.other_rows);
  }
  if (from.rows != buffers.rows) launch_if_needed(queue, buffers.n, copy_back, buffers, needed);
}

template <int D, typename T>
void order_rows(Queue& queue, Order<D, T> order, int64_t n, uint32_t* rows) {
  Buffers buffers{queue.scratch<uint64_t>(n), queue.scratch<uint64_t>(n), rows, queue.scratch<uint32_t>(n), n};
  int32_t* long_runs = queue.scratch<int32_t>(1);
  queue.launch_over(n, find_sort_keys<D, T>, order, buffers, long_runs);
  DoubleBuffer<uint64_t> keys{buffers.keys, buffers.other_keys};
  DoubleBuffer<uint32_t> sorted{buffers.rows, buffers.other_rows};
  sort_pairs(queue, keys, sorted, n);
  buffers = Buffers{keys.current, keys.other, sorted.current, sorted.other, n};
  queue.launch_over(n, sort_short_runs<D, T>, order, buffers, long_runs);
  merge_sort<D, T>(queue, order, buffers, long_runs);
  if (buffers.rows != rows) queue.copy(rows, buffers.rows, n);
}

// One thread per coordinate.
template <int D, typename T>
__global__ void place_positions(const T* pos, const uint32_t* rows, int64_t n, T* sorted) {
  int64_t i = thread_index();
  if (i < n * D) sorted[i] = pos[static_cast<int64_t>(rows[i / D]) * D + i % D];
}

template <int D, typename T>
void zsort(Queue& queue, const ZOrder<D, T>& in) {
  int64_t n = in.pos.rows();
  if (n == 0) return;
  Order<D, T> order{in.pos, in.num, device_grid(queue, in.keys)};
  uint32_t* rows = reinterpret_cast<uint32_t*>(in.order);
  order_rows<D, T>(queue, order, n, rows);
  queue.launch_over(n * D, place_positions<D, T>, in.pos, rows, n, in.sorted);
}

}  // namespace

JZTREE_KERNEL(zsort, ZOrder);

}  // namespace jztree
