// The CPU works row by row. Here stable radix sorts and running sums of integers give the same results for any order of
// threads. The time is bound by memory. Bytes moved per row; then bytes of work arrays:
//   group_parts  keys of 31 + log2(n) bits are sorted with their rows: 24 bytes per pass, and 100 more; 24 bytes per
//   row
//   pack_parts   8 bytes per entry of the buffer, with a binary search per rank

#include <algorithm>
#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/primitives.cuh"
#include "common/partition.h"
#include "group_parts.h"
#include "group_rows.cuh"
#include "one_window.cuh"

namespace jztree {
namespace {

// The number of rows that hold particles. It is 0 if a root is invalid, because roots are then unusable as indices.
struct GoodRows {
  Count num;
  const int32_t* bad_row;

  __device__ int64_t operator()() const { return *bad_row < 0 ? num() : 0; }
};

// -1 is the largest unsigned number, so the minimum replaces it by any row.
__global__ void find_bad_row(Roots roots, const int32_t* rank, Count num, int32_t* bad_row) {
  int64_t row = thread_index();
  if (row < num() && roots.bad(row, *rank, num.rows))
    atomicMin(reinterpret_cast<unsigned*>(bad_row), static_cast<unsigned>(row));
}

// Sort keys for parts whose roots are on other ranks. A row takes `bits` bits of the key, at most 31. Rows in no such
// part have only ones as key, and sort last.
struct PartKeys {
  Roots roots;
  int bits;

  int end_bit() const { return bits + 31; }
  JZTREE_BOTH uint64_t last() const { return (uint64_t{1} << (bits + 31)) - 1; }
  __device__ uint64_t key(int64_t row) const {
    return static_cast<uint64_t>(roots.rank[row]) << bits | static_cast<uint64_t>(roots.row[row]);
  }
};

// Parts that this rank owns are named by their roots. Labels of the other parts are set later.
__global__ void begin_parts(PartKeys keys, const int32_t* rank, GoodRows num, int32_t* label, int32_t* count,
                            uint64_t* key, int32_t* rows) {
  int64_t row = thread_index(), n = num.num.rows;
  bool exists = row < num(), is_local = exists && keys.roots.rank[row] == *rank;
  int32_t root = is_local ? keys.roots.row[row] : -1;
  count_members(count, root);
  if (row >= n) return;
  label[row] = is_local ? root : static_cast<int32_t>(row);
  key[row] = exists && !is_local ? keys.key(row) : keys.last();
  rows[row] = static_cast<int32_t>(row);
}

// Rows sorted by the keys of their parts; rows with the key `last` are in no part.
struct SortedParts {
  const uint64_t* key;
  const int32_t* rows;
  int64_t n;
  uint64_t last;

  __device__ bool in_part(int64_t i) const { return i < n && key[i] != last; }
  __device__ bool begins(int64_t i) const { return i == 0 || key[i] != key[i - 1]; }
  __device__ bool ends(int64_t i) const { return i + 1 == n || key[i] != key[i + 1]; }
};

__global__ void mark_parts(SortedParts sorted, int32_t* begins) {
  int64_t i = thread_index();
  if (i < sorted.n) begins[i] = sorted.in_part(i) && sorted.begins(i);
}

// before: the number of parts that begin before each row.
__global__ void list_part_begins(SortedParts sorted, const int32_t* before, int32_t* begin) {
  int64_t i = thread_index();
  if (sorted.in_part(i) && sorted.begins(i)) begin[before[i]] = static_cast<int32_t>(i);
}

__global__ void list_parts(SortedParts sorted, const int32_t* before, const int32_t* begin, int32_t* label,
                           int32_t* count, int32_t* parts, int32_t* num_parts) {
  int64_t i = thread_index();
  if (!sorted.in_part(i)) return;
  int32_t part = sorted.begins(i) ? before[i] : before[i] - 1, first_place = begin[part];
  int32_t first = sorted.rows[first_place];  // rows with the same key stay in order
  label[sorted.rows[i]] = first;
  if (sorted.begins(i)) parts[part] = first;
  if (!sorted.ends(i)) return;
  count[first] = static_cast<int32_t>(i + 1 - first_place);
  if (!sorted.in_part(i + 1)) *num_parts = part + 1;
}

// Parts with a distance of `chunk` in the list must not be in one window of one rank. Windows of one row always
// suffice.
__global__ void cut_windows(Roots roots, const int32_t* parts, Count num_parts, int64_t chunk, int32_t* windows) {
  int64_t part = thread_index();
  if (part == 0) atomicMax(windows, 1);
  if (part < chunk || part >= num_parts()) return;
  int64_t row = parts[part], earlier_row = parts[part - chunk];
  if (roots.rank[row] != roots.rank[earlier_row]) return;
  Windows cut{num_parts.rows, 1};
  while (cut.count < (1 << 30) && cut.of(roots.row[row]) == cut.of(roots.row[earlier_row])) cut.count *= 2;
  if (cut.count > 1) atomicMax(windows, static_cast<int32_t>(cut.count));
}

// Sort rows in the order of their parts, and set their labels and counts.
void sort_parts(Queue& queue, const GroupParts& in, const PartKeys& keys, const GoodRows& num) {
  int64_t n = in.rows();
  DoubleBuffer<uint64_t> key{queue.scratch<uint64_t>(n), queue.scratch<uint64_t>(n)};
  DoubleBuffer<int32_t> rows{queue.scratch<int32_t>(n), queue.scratch<int32_t>(n)};
  queue.launch_over(n, begin_parts, keys, in.rank, num, in.label, in.count, key.current, rows.current);
  sort_pairs(queue, key, rows, n, 0, keys.end_bit());
  SortedParts sorted{key.current, rows.current, n, keys.last()};
  auto* before = reinterpret_cast<int32_t*>(key.other);
  queue.launch_over(n, mark_parts, sorted, before);
  exclusive_sum(queue, before, before, n);
  queue.launch_over(n, list_part_begins, sorted, before, rows.other);
  queue.launch_over(n, list_parts, sorted, before, rows.other, in.label, in.count, in.parts, in.num_parts);
}

void group_parts(Queue& queue, const GroupParts& in) {
  int64_t n = in.rows();
  queue.fill_bytes(in.bad_row, 0xff, 1);
  queue.fill_bytes(in.parts, 0xff, n);
  queue.fill_bytes(in.count, 0, n);
  queue.fill_bytes(in.num_parts, 0, 1);
  queue.fill_bytes(in.windows, 0, 1);
  if (n > 0) {
    queue.launch_over(n, find_bad_row, in.roots(), in.rank, in.num, in.bad_row);
    sort_parts(queue, in, PartKeys{in.roots(), bits_of(n - 1)}, GoodRows{in.num, in.bad_row});
  }
  queue.launch_over(std::max<int64_t>(n, 1), cut_windows, in.roots(), in.parts, Count{in.num_parts, n}, in.chunk,
                    in.windows);
}

// The parts for each rank: parts are in the order of their roots.
__global__ void split_parts(Roots roots, const int32_t* parts, Count num_parts, OneWindow window, int64_t ranks,
                            int64_t chunk, int32_t* starts, int32_t* counts) {
  int64_t rank = thread_index();
  if (rank >= ranks) return;
  auto first_from = [&](int64_t row) {
    return partition_point(0, num_parts(),
                           [&](int64_t part) { return roots.key(parts[part]) < Roots::key_of(rank, row); });
  };
  int64_t from = first_from(window.begin()), to = first_from(window.end());
  starts[rank] = static_cast<int32_t>(from);
  counts[rank] = static_cast<int32_t>(std::min(to - from, chunk));
}

__global__ void fill_buffer(const int32_t* root_row, const int32_t* count, const int32_t* parts, const int32_t* starts,
                            const int32_t* counts, int64_t ranks, int64_t chunk, int32_t* buffer) {
  int64_t entry = thread_index();
  if (entry >= ranks * chunk) return;
  int64_t rank = entry / chunk, j = entry - rank * chunk;
  bool filled = j < counts[rank];
  int32_t part = filled ? parts[starts[rank] + j] : 0;
  buffer[2 * entry] = filled ? root_row[part] : -1;
  buffer[2 * entry + 1] = filled ? count[part] : 0;
}

void pack_parts(Queue& queue, const PackParts& in) {
  queue.launch_over(in.ranks(), split_parts, in.roots(), in.parts, in.num_parts,
                    OneWindow{in.rows(), in.window, in.windows}, in.ranks(), in.chunk(), in.starts, in.counts);
  queue.launch_over(in.ranks() * in.chunk(), fill_buffer, in.root_row, in.count, in.parts, in.starts, in.counts,
                    in.ranks(), in.chunk(), in.buffer);
}

}  // namespace

JZTREE_PLAIN_KERNEL(group_parts, GroupParts);
JZTREE_PLAIN_KERNEL(pack_parts, PackParts);

}  // namespace jztree
