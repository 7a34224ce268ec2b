// The time is bound by memory. Bytes moved per row; then bytes of work arrays:
//   group_targets   rows are sorted by log2(n) bits: 16 bytes per pass, and 60 more; 16 bytes per row
//   group_segments  40 bytes, with binary searches over the ranks for each group; 4 bytes per row

#include <algorithm>
#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/primitives.cuh"
#include "common/partition.h"
#include "group_targets.h"

namespace jztree {
namespace {

__global__ void tally_ranks(const uint32_t* tallies, int64_t ranks, uint64_t* particles) {
  int64_t rank = thread_index();
  if (rank <= ranks)
    particles[rank] = rank < ranks ? GlobalOrder::particles_of(tallies + GlobalOrder::tally_words * rank) : 0;
}

GlobalOrder global_order(Queue& queue, const Array<const uint32_t>& tallies) {
  int64_t ranks = tallies.rows();
  auto* starts = queue.scratch<uint64_t>(ranks + 1);
  queue.launch_over(ranks + 1, tally_ranks, tallies, ranks, starts);
  exclusive_sum(queue, starts, starts, ranks + 1);
  return GlobalOrder{tallies, starts, ranks};
}

// Keys of groups: their first rows; `none` for rows in no listed group.
__global__ void key_listed(const int32_t* label, const uint64_t* places, Count num, uint32_t* key, int32_t* rows) {
  int64_t row = thread_index();
  if (row >= num.rows) return;
  int64_t first = row < num() ? label[row] : -1;
  bool listed = first >= 0 && first <= row && places[first] != not_listed;
  key[row] = listed ? static_cast<uint32_t>(first) : static_cast<uint32_t>(num.rows);
  rows[row] = static_cast<int32_t>(row);
}

// begin[key]: first position of this key in the sorted order.
__global__ void find_begins(const uint32_t* key, int64_t n, int32_t* begin) {
  int64_t i = thread_index();
  if (i < n && (i == 0 || key[i] != key[i - 1])) begin[key[i]] = static_cast<int32_t>(i);
}

// Determines the destination of a particle.
struct Targets {
  Roots roots;
  const uint64_t* places;
  GlobalOrder order;
  Count rank;

  // The place of a row with `before` rows of its part before it; if it is in no listed group, `before` counts all such
  // rows here.
  __device__ uint64_t place(int64_t row, int64_t part, bool listed, uint64_t before) const {
    if (!listed) return order.unlisted(rank()) + before;
    int64_t owner = roots.rank[row];
    if (owner < 0 || owner >= order.ranks) return order.total();
    return places[part] + order.groups(owner) + before;
  }
  __device__ bool is_root(int64_t row) const { return roots.rank[row] == rank() && roots.row[row] == row; }
};

// The i-th row in the order of keys is rows[i].
__global__ void write_targets(Targets targets, const uint32_t* key, const int32_t* rows, const int32_t* begin,
                              Count num, int32_t* to_rank, int32_t* target) {
  int64_t i = thread_index(), n = num.rows;
  if (i >= n) return;
  int64_t row = rows[i], part = key[i];
  bool exists = row < num(), listed = part < n;
  uint64_t total = targets.order.total(), place = total;
  if (exists) place = targets.place(row, part, listed, static_cast<uint64_t>(i - begin[part]));
  bool goes = place < total;
  Shares shares(total, static_cast<uint64_t>(targets.order.ranks));
  uint64_t to = goes ? shares.rank_of(place) : 0;
  int32_t offset = goes ? static_cast<int32_t>(place - shares.start(to)) : 0;
  to_rank[row] = goes ? static_cast<int32_t>(to) : -1;
  target[row] = listed && targets.is_root(row) ? ~offset : offset;
}

// After rows are sorted by group, their positions give the number of rows before each.
void group_targets(Queue& queue, const GroupTargets& in) {
  int64_t n = in.rows();
  if (n == 0) return;
  auto* places = reinterpret_cast<const uint64_t*>(in.places);
  GlobalOrder order = global_order(queue, in.tallies);
  Targets targets{in.roots(), places, order, Count{in.rank, order.ranks - 1}};
  DoubleBuffer<uint32_t> keys{queue.scratch<uint32_t>(n + 1), queue.scratch<uint32_t>(n + 1)};
  DoubleBuffer<int32_t> rows{queue.scratch<int32_t>(n), queue.scratch<int32_t>(n)};
  queue.launch_over(n, key_listed, in.label, places, in.num, keys.current, rows.current);
  sort_pairs(queue, keys, rows, n, 0, bits_of(n));
  auto* begin = reinterpret_cast<int32_t*>(keys.other);
  queue.launch_over(n, find_begins, keys.current, n, begin);
  queue.launch_over(n, write_targets, targets, keys.current, rows.current, begin, in.num, in.to_rank, in.target);
}

// This rank's share of the global order.
struct MyShare {
  GlobalOrder order;
  Count rank, num;

  __device__ uint64_t start() const {
    return Shares(order.total(), static_cast<uint64_t>(order.ranks)).start(static_cast<uint64_t>(rank()));
  }

  // The last rank whose part of the order starts before `position`, or -1 if no part does. If `inclusive`, a part that
  // starts at `position` also counts.
  __device__ int64_t owner(uint64_t position, bool inclusive) const {
    return partition_point(0, order.ranks,
                           [&](int64_t rank) {
                             return inclusive ? order.groups(rank) <= position : order.groups(rank) < position;
                           }) -
           1;
  }

  // The row after the listed groups of an owner.
  __device__ int64_t end_of_groups(int64_t owner) const {
    uint64_t end = owner >= 0 ? order.unlisted(owner) : 0, from = start(), rows = static_cast<uint64_t>(num());
    return end > from ? static_cast<int64_t>(std::min(end - from, rows)) : 0;
  }
};

// begins[row]: whether a group begins there.
__global__ void place_arrivals(const int32_t* target, Count num, int32_t* place, int32_t* begins) {
  int64_t row = thread_index(), rows = num();
  if (row >= num.rows) return;
  int32_t to = row < rows ? target[row] : static_cast<int32_t>(row);
  place[row] = to < 0 ? ~to : to;
  if (to < 0 && ~to < rows) begins[~to] = 1;
}

// number[row]: number of groups that begin before the row, for all rows and one more.
__global__ void list_begins(const int32_t* number, int64_t n, int64_t room, int32_t* ngroups, int32_t* offset) {
  int64_t row = thread_index();
  if (row == 0) *ngroups = static_cast<int32_t>(std::min<int64_t>(number[n], room));
  if (row < n && number[row + 1] > number[row] && number[row] < room) offset[number[row]] = static_cast<int32_t>(row);
}

// A group ends at the start of the next group or, if it is the last, at the end of its owner's groups.
__global__ void measure_groups(MyShare share, const int32_t* ngroups, int64_t room, const int32_t* offset,
                               int32_t* count, int32_t* head) {
  int64_t group = thread_index(), groups = *ngroups;
  if (group == 0) {
    int64_t end = share.end_of_groups(share.owner(share.start(), false));
    *head = static_cast<int32_t>(groups > 0 ? std::min<int64_t>(end, offset[0]) : end);
  }
  if (group >= groups || group >= room) return;
  int64_t row = offset[group];
  int64_t end = share.end_of_groups(share.owner(share.start() + static_cast<uint64_t>(row), true));
  if (group + 1 < groups) end = std::min<int64_t>(end, offset[group + 1]);
  count[group] = static_cast<int32_t>(std::max<int64_t>(0, end - row));
}

void group_segments(Queue& queue, const GroupSegments& in) {
  int64_t n = in.rows(), room = in.room();
  GlobalOrder order = global_order(queue, in.tallies);
  MyShare share{order, Count{in.rank, order.ranks - 1}, in.num};
  auto* number = queue.scratch<int32_t>(n + 1);
  queue.fill_bytes(number, 0, n + 1);
  queue.fill_bytes(in.count.data, 0, room);
  queue.fill_bytes(in.offset, 0, room);
  queue.launch_over(n, place_arrivals, in.target, in.num, in.place, number);
  exclusive_sum(queue, number, number, n + 1);
  queue.launch_over(n + 1, list_begins, number, n, room, in.ngroups, in.offset);
  queue.launch_over(room + 1, measure_groups, share, in.ngroups, room, in.offset, in.count, in.head);
}

}  // namespace

JZTREE_PLAIN_KERNEL(group_targets, GroupTargets);
JZTREE_PLAIN_KERNEL(group_segments, GroupSegments);

}  // namespace jztree
