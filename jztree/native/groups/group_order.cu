// Members are counted at the first row of each group. A running sum over the rows that begin a listed group numbers
// these groups. One stable radix sort of the rows by the number of their group gives the order; rows in no listed group
// and the padding sort last. The numbers are below n / npart_min, so only few bits have to be sorted: three passes for
// 1e8 particles and groups of 20. Bound by memory: about 56 bytes per row, and 16 more for each pass of the sort. Work
// arrays: 12 bytes per row. Members are counted with integers, so no result depends on the order of threads.

#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/primitives.cuh"
#include "group_order.h"
#include "group_rows.cuh"

namespace jztree {
namespace {

__global__ void count_rows(const int32_t* label, Count num, int32_t* members) {
  int64_t row = thread_index(), rows = num();
  int32_t first = row < rows ? label[row] : -1;
  count_members(members, first < rows ? first : -1);
}

__global__ void mark_listed(const int32_t* members, int64_t n, int64_t npart_min, int32_t* begins) {
  int64_t row = thread_index();
  if (row < n) begins[row] = members[row] >= npart_min;
}

// number[row]: number of listed groups that begin before the row.
struct ListedGroups {
  const int32_t *members, *number;
  int64_t n, npart_min;

  __device__ bool begins(int64_t row) const { return members[row] >= npart_min; }
};

__global__ void write_counts(ListedGroups groups, int32_t* ngroups, int32_t* count) {
  int64_t row = thread_index();
  if (row >= groups.n) return;
  bool begins = groups.begins(row);
  if (begins) count[groups.number[row]] = groups.members[row];
  if (row == groups.n - 1) *ngroups = groups.number[row] + begins;
}

// Rows in no listed group get the key `last`.
__global__ void number_rows(ListedGroups groups, const int32_t* label, Count num, uint32_t last, uint32_t* key,
                            int32_t* rows) {
  int64_t row = thread_index();
  if (row >= groups.n) return;
  int64_t rows_here = num(), first = row < rows_here ? label[row] : -1;
  bool listed = first >= 0 && first < rows_here && groups.begins(first);
  key[row] = listed ? static_cast<uint32_t>(groups.number[first]) : last;
  rows[row] = static_cast<int32_t>(row);
}

// Running sums of counts are correct for existing groups; the entries after them must be zero.
__global__ void clear_offsets(const int32_t* ngroups, int64_t room, int32_t* offset) {
  int64_t group = thread_index();
  if (group >= *ngroups && group < room) offset[group] = 0;
}

void order_by_group(Queue& queue, const GroupOrder& in) {
  int64_t n = in.label.rows(), room = in.room();
  auto* members = queue.scratch<int32_t>(n);
  auto* number = queue.scratch<int32_t>(n);
  queue.fill_bytes(members, 0, n);
  queue.launch_over(n, count_rows, in.label, in.num, members);
  queue.launch_over(n, mark_listed, members, n, in.npart_min, number);
  exclusive_sum(queue, number, number, n);
  ListedGroups groups{members, number, n, in.npart_min};
  queue.launch_over(n, write_counts, groups, in.ngroups, in.count);
  if (room > 0) {
    exclusive_sum(queue, in.count.data, in.offset, room);
    queue.launch_over(room, clear_offsets, in.ngroups, room, in.offset);
  }
  auto* key = queue.scratch<uint32_t>(n);
  queue.launch_over(n, number_rows, groups, in.label, in.num, static_cast<uint32_t>(room), key, in.order);
  // From here on, counts and numbers are unused.
  DoubleBuffer<uint32_t> keys{key, reinterpret_cast<uint32_t*>(members)};
  DoubleBuffer<int32_t> rows{in.order, number};
  sort_pairs(queue, keys, rows, n, 0, bits_of(room));
  if (rows.current != in.order) queue.copy(in.order, rows.current, n);
}

void group_order(Queue& queue, const GroupOrder& in) {
  queue.fill_bytes(in.ngroups, 0, 1);
  queue.fill_bytes(in.count.data, 0, in.room());
  queue.fill_bytes(in.offset, 0, in.room());
  if (in.label.rows() > 0) order_by_group(queue, in);
}

}  // namespace

JZTREE_PLAIN_KERNEL(group_order, GroupOrder);

}  // namespace jztree
