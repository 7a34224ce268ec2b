// One pass computes the first bits of each key; a stable radix sort (CUB) brings the rows into order. These are 24 bits
// more than the numbers of the rows have, so few rows share all of them, and the sort does not move the data again for
// bits that decide nothing. Runs of equal first bits are then sorted by whole keys: short ones by one thread each, all
// at once; longer ones, which occur in clumps that are much denser than the mean, by one block each. If an outlier
// makes the domain so large that a run does not fit into a block, all rows need a merge sort. Its passes are always
// launched, because only the GPU knows about long runs. Without long runs, they return at once. The passes start from
// rows that blocks have sorted and merge 32 at a time, which keeps their number low.
//
// The order is the same as on the CPU: by key, then the bits of the coordinates, then place. Non-finite rows follow all
// others, and rows from `num` on are last.

#include <algorithm>
#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/keys.cuh"
#include "common/cuda/primitives.cuh"
#include "common/partition.h"
#include "common/scale.h"
#include "zsort.h"

namespace jztree {
namespace {

// Runs of equal sort keys up to this length are sorted by the thread that finds them.
constexpr int64_t short_run = 32;
// Longer runs up to this length are sorted by a block.
constexpr int64_t piece_rows = 1024;
constexpr int64_t merge_ways = 32;

// The number of bits of the sort keys of n rows: in a region with 2^24 times the mean density, a cell of these bits has
// about one row. A pass of the radix sort takes eight bits.
inline int sort_key_bits(int64_t n) {
  constexpr int more_than_rows = 24, digit = 8;
  return std::min(64, (bits_of(n) + more_than_rows + digit - 1) / digit * digit);
}

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
  int bits;  // of sort keys

  // The sort key of rows without a key.
  __device__ uint64_t no_key() const { return ~uint64_t{0} >> (64 - bits); }
  __device__ const T* at(uint32_t row) const { return pos + static_cast<int64_t>(row) * D; }
  __device__ MortonKey key(uint32_t row) const { return Morton<D>::key(*grid, at(row)); }

  // The first bits of the row's key. The last cell shares its sort key with the cell before it.
  __device__ uint64_t sort_key(uint32_t row) const {
    if (row >= num() || !is_finite_row<D>(at(row))) return no_key();
    const int left_out = grid->dims * grid->bits - bits;
    const uint64_t first = Morton<D>::high(*grid, at(row)) >> (left_out > 0 ? left_out : 0);
    return first < no_key() ? first : no_key() - 1;
  }

  __device__ bool before(const Entry& a, const Entry& b) const {
    if (a.sort_key != b.sort_key) return a.sort_key < b.sort_key;
    if (a.sort_key == no_key()) return a.row < b.row;
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

// Rows that one block sorts.
struct Piece {
  uint32_t begin, count;
};

// Runs that are too long for a thread.
struct LongRuns {
  int32_t* count;  // of the runs in the list
  Piece* list;     // runs of at most piece_rows
  int32_t* merge;  // not 0: there are longer ones, so all rows must be merged
};

template <int D, typename T>
__global__ void find_sort_keys(Order<D, T> order, Buffers buffers, LongRuns long_runs) {
  int64_t i = thread_index();
  if (i == 0) *long_runs.count = *long_runs.merge = 0;
  if (i >= buffers.n) return;
  uint32_t row = static_cast<uint32_t>(i);
  buffers.rows[i] = row;
  buffers.keys[i] = order.sort_key(row);
}

// The end of a run of equal sort keys, if it is before `last`; otherwise `last`. first: a place in the run.
__device__ int64_t run_end(const uint64_t* keys, int64_t first, int64_t last) {
  const uint64_t key = keys[first];
  return partition_point(first, last, [&](int64_t place) { return keys[place] == key; });
}

// Each thread sorts the run of equal sort keys that starts at its place, if it is short; it lists a longer one.
template <int D, typename T>
__global__ void sort_short_runs(Order<D, T> order, Buffers buffers, LongRuns long_runs) {
  const uint64_t* keys = buffers.keys;
  uint32_t* rows = buffers.rows;
  int64_t begin = thread_index(), n = buffers.n;
  if (begin + 1 >= n) return;
  uint64_t key = keys[begin];
  if (key == order.no_key() || keys[begin + 1] != key || (begin > 0 && keys[begin - 1] == key)) return;
  int64_t end = begin + 2;
  while (end < n && end - begin <= short_run && keys[end] == key) ++end;
  if (end - begin > short_run) {
    end = run_end(keys, end - 1, begin + piece_rows < n ? begin + piece_rows + 1 : n);
    if (end - begin > piece_rows) {
      atomicOr(long_runs.merge, 1);
    } else {
      long_runs.list[atomicAdd(long_runs.count, 1)] = {static_cast<uint32_t>(begin),
                                                       static_cast<uint32_t>(end - begin)};
    }
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
  return partition_point(begin, end, before) - begin;
}

// Kernels that usually return at once are launched with about as many blocks as a GPU runs at the same time, because
// even an idle block takes time. So a thread processes several entries.
constexpr int idle_threads = 256;
constexpr int64_t most_idle_blocks = 1024;

__device__ int64_t threads_launched() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

template <typename... Parameters, typename... Arguments>
void launch_if_needed(Queue& queue, int64_t blocks, size_t shared_bytes, void (*kernel)(Parameters...),
                      const Arguments&... arguments) {
  queue.launch(std::min(most_idle_blocks, blocks), idle_threads, shared_bytes, kernel, arguments...);
}

// Merge sorted blocks, `Ways` at a time, from the buffers to the others. An entry's place is the number of entries
// before it in each block.
template <int Ways, int D, typename T>
__device__ void merge_entry(const Order<D, T>& order, const Buffers& buffers, int64_t block, int64_t i) {
  Entry entry{buffers.keys[i], buffers.rows[i]};
  int64_t own_block = i / block, first = own_block / Ways * Ways, place = first * block + i % block;
  for (int64_t other_block = first; other_block < first + Ways && other_block * block < buffers.n; ++other_block) {
    int64_t end = (other_block + 1) * block < buffers.n ? (other_block + 1) * block : buffers.n;
    if (other_block != own_block) place += entries_before<D>(order, buffers, other_block * block, end, entry);
  }
  buffers.other_keys[place] = entry.sort_key;
  buffers.other_rows[place] = entry.row;
}

// The shared memory of a block that sorts a piece.
struct PieceMemory {
  uint64_t keys[2][piece_rows];
  uint32_t rows[2][piece_rows];
};

// Run by all threads of a block.
template <int D, typename T>
__device__ void sort_piece(const Order<D, T>& order, const Buffers& buffers, const Piece& piece, PieceMemory& memory) {
  Buffers own{memory.keys[0], memory.keys[1], memory.rows[0], memory.rows[1], piece.count};
  for (int64_t i = threadIdx.x; i < own.n; i += idle_threads) {
    own.keys[i] = buffers.keys[piece.begin + i];
    own.rows[i] = buffers.rows[piece.begin + i];
  }
  __syncthreads();
  for (int64_t block = 1; block < own.n; block *= 2) {
    for (int64_t i = threadIdx.x; i < own.n; i += idle_threads) merge_entry<2, D>(order, own, block, i);
    __syncthreads();
    own = {own.other_keys, own.keys, own.other_rows, own.rows, own.n};
  }
  // The order of the sort keys is already right.
  for (int64_t i = threadIdx.x; i < own.n; i += idle_threads) buffers.rows[piece.begin + i] = own.rows[i];
  __syncthreads();
}

// Sort the long runs, or if one of them does not fit into a block, every piece_rows rows.
template <int D, typename T>
__global__ void __launch_bounds__(idle_threads) sort_pieces(Order<D, T> order, Buffers buffers, LongRuns long_runs) {
  PieceMemory& memory = *reinterpret_cast<PieceMemory*>(dynamic_shared());
  if (*long_runs.merge == 0) {
    for (int64_t run = blockIdx.x; run < *long_runs.count; run += gridDim.x)
      sort_piece<D>(order, buffers, long_runs.list[run], memory);
    return;
  }
  for (int64_t begin = blockIdx.x * piece_rows; begin < buffers.n; begin += gridDim.x * piece_rows) {
    const int64_t rest_rows = buffers.n - begin;
    sort_piece<D>(
        order, buffers,
        {static_cast<uint32_t>(begin), static_cast<uint32_t>(rest_rows < piece_rows ? rest_rows : piece_rows)}, memory);
  }
}

// Merge every merge_ways sorted blocks into one, from the buffers to the others.
template <int D, typename T>
__global__ void merge_blocks(Order<D, T> order, Buffers buffers, int64_t block, const int32_t* needed) {
  if (*needed == 0) return;
  for (int64_t i = thread_index(); i < buffers.n; i += threads_launched())
    merge_entry<merge_ways, D>(order, buffers, block, i);
}

// The rows in order: `merged` if they had to be merged.
struct SortedRows {
  const uint32_t *sorted, *merged;
  const int32_t* merge;

  __device__ const uint32_t* rows() const { return *merge == 0 ? sorted : merged; }
};

// Sort the long runs, if there are any.
template <int D, typename T>
SortedRows sort_long_runs(Queue& queue, const Order<D, T>& order, const Buffers& buffers, const LongRuns& long_runs) {
  const int64_t n = buffers.n, pieces = (n + piece_rows - 1) / piece_rows,
                blocks = (n + idle_threads - 1) / idle_threads;
  if (n > short_run) launch_if_needed(queue, pieces, sizeof(PieceMemory), sort_pieces<D, T>, order, buffers, long_runs);
  Buffers from = buffers;
  for (int64_t block = piece_rows; block < n; block *= merge_ways) {
    launch_if_needed(queue, blocks, 0, merge_blocks<D, T>, order, from, block, long_runs.merge);
    from = {from.other_keys, from.keys, from.other_rows, from.rows, n};
  }
  return {buffers.rows, from.rows, long_runs.merge};
}

// rows: memory for the rows, which may be overwritten.
template <int D, typename T>
SortedRows sort_rows(Queue& queue, const Order<D, T>& order, int64_t n, uint32_t* rows) {
  Buffers buffers{queue.scratch<uint64_t>(n), queue.scratch<uint64_t>(n), rows, queue.scratch<uint32_t>(n), n};
  const LongRuns long_runs{queue.scratch<int32_t>(1), queue.scratch<Piece>(n / short_run), queue.scratch<int32_t>(1)};
  queue.launch_over(n, find_sort_keys<D, T>, order, buffers, long_runs);
  DoubleBuffer<uint64_t> keys{buffers.keys, buffers.other_keys};
  DoubleBuffer<uint32_t> sorted{buffers.rows, buffers.other_rows};
  sort_pairs(queue, keys, sorted, n, 0, order.bits);
  buffers = {keys.current, keys.other, sorted.current, sorted.other, n};
  queue.launch_over(n, sort_short_runs<D, T>, order, buffers, long_runs);
  return sort_long_runs(queue, order, buffers, long_runs);
}

// One thread per coordinate.
template <int D, typename T>
__global__ void place_positions(const T* pos, SortedRows sorted_rows, int64_t n, uint32_t* order, T* sorted) {
  int64_t i = thread_index();
  if (i >= n * D) return;
  const uint32_t *rows = sorted_rows.rows(), row = rows[i / D];
  sorted[i] = pos[static_cast<int64_t>(row) * D + i % D];
  if (i % D == 0 && rows != order) order[i / D] = row;
}

template <int D, typename T>
void zsort(Queue& queue, const ZOrder<D, T>& in) {
  int64_t n = in.pos.rows();
  if (n == 0) return;
  const Order<D, T> order{in.pos, in.num, device_grid(queue, in.keys), sort_key_bits(n)};
  uint32_t* rows = reinterpret_cast<uint32_t*>(in.order);
  const SortedRows sorted = sort_rows(queue, order, n, rows);
  queue.launch_over(n * D, place_positions<D, T>, in.pos, sorted, n, rows, in.sorted);
}

}  // namespace

JZTREE_KERNEL(zsort, ZOrder);

}  // namespace jztree
