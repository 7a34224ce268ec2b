// The order of particles by group: listed groups, of at least npart_min particles, in the order of their first rows,
// one after the other; then all other rows. Within each, rows keep their order.
//
// Members are counted at the first row of each group; a running sum over the rows that begin a listed group numbers
// these; and one stable radix sort of the rows by the number of their group, in which all rows of no listed group and
// the padding come last, gives the order. The numbers are below n / npart_min, so that few bits have to be sorted:
// three passes for 1e8 particles and groups of 20. Bound by memory: about 56 bytes a row, and 16 more for each pass of
// the sort. Work arrays: 12 bytes a row. Members are counted with integers, so no result depends on the order of
// threads.

#include <cstdint>

#include "common/cuda/arguments.cuh"
#include "group_rows.cuh"
#include "common/cuda/primitives.cuh"
#include "common/cuda/queue.cuh"

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

// number[row]: how many listed groups begin before the row.
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

// Rows of no listed group get the key `last`.
__global__ void number_rows(ListedGroups groups, const int32_t* label, Count num, uint32_t last, uint32_t* key,
                            int32_t* rows) {
  int64_t row = thread_index();
  if (row >= groups.n) return;
  int64_t here = num(), first = row < here ? label[row] : -1;
  bool listed = first >= 0 && first < here && groups.begins(first);
  key[row] = listed ? static_cast<uint32_t>(groups.number[first]) : last;
  rows[row] = static_cast<int32_t>(row);
}

// Running sums of counts are right for the groups that there are; behind them stand zeros.
__global__ void clear_offsets(const int32_t* ngroups, int64_t room, int32_t* offset) {
  int64_t group = thread_index();
  if (group >= *ngroups && group < room) offset[group] = 0;
}

void order_by_group(Queue& queue, const int32_t* label, Count num, int64_t npart_min, int64_t room, int32_t* order,
                    int32_t* ngroups, int32_t* count, int32_t* offset) {
  int64_t n = num.rows;
  auto* members = queue.scratch<int32_t>(n);
  auto* number = queue.scratch<int32_t>(n);
  queue.fill_bytes(members, 0, n);
  queue.launch_over(n, count_rows, label, num, members);
  queue.launch_over(n, mark_listed, members, n, npart_min, number);
  exclusive_sum(queue, number, number, n);
  ListedGroups groups{members, number, n, npart_min};
  queue.launch_over(n, write_counts, groups, ngroups, count);
  if (room > 0) {
    exclusive_sum(queue, count, offset, room);
    queue.launch_over(room, clear_offsets, ngroups, room, offset);
  }
  auto* key = queue.scratch<uint32_t>(n);
  queue.launch_over(n, number_rows, groups, label, num, static_cast<uint32_t>(room), key, order);
  // Counts and numbers have been used up.
  cub::DoubleBuffer<uint32_t> keys(key, reinterpret_cast<uint32_t*>(members));
  cub::DoubleBuffer<int32_t> rows(order, number);
  sort_pairs(queue, keys, rows, n, 0, bits_of(room));
  if (rows.Current() != order) queue.copy(order, rows.Current(), n);
}

ffi::Error group_order(cudaStream_t stream, DeviceMemory scratch, ffi::Buffer<ffi::S32> label,
                       ffi::Buffer<ffi::S32> num, ffi::Result<ffi::Buffer<ffi::S32>> order,
                       ffi::Result<ffi::Buffer<ffi::S32>> ngroups, ffi::Result<ffi::Buffer<ffi::S32>> count,
                       ffi::Result<ffi::Buffer<ffi::S32>> offset, int64_t npart_min) {
  return guarded([&] {
    int64_t n = static_cast<int64_t>(label.element_count()), room = static_cast<int64_t>(count->element_count());
    if (npart_min < 1 || static_cast<int64_t>(order->element_count()) != n || room < n / npart_min ||
        static_cast<int64_t>(offset->element_count()) != room)
      return invalid("group_order was called with arrays that do not fit together.");
    Queue queue(stream, scratch);
    queue.fill_bytes(ngroups->typed_data(), 0, 1);
    queue.fill_bytes(count->typed_data(), 0, room);
    queue.fill_bytes(offset->typed_data(), 0, room);
    if (n > 0)
      order_by_group(queue, label.typed_data(), read_count(num, n), npart_min, room, order->typed_data(),
                     ngroups->typed_data(), count->typed_data(), offset->typed_data());
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_group_order, group_order, "npart_min");

}  // namespace jztree
