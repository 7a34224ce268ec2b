// Particles of all ranks into group order, as grouping.h tells.
//
// What the CPU does row after row is done here with stable radix sorts and running sums of integers, which do not
// depend on the order of threads. Bound by memory. Bytes moved a row, and work arrays:
//   group_parts     keys of 31 + log2(n) bits are sorted with their rows: 24 bytes a pass, and 100 more; 24 bytes a row
//   pack_parts      8 bytes an entry of the buffer, with a binary search a rank
//   settle_groups   60 bytes, and 40 an entry; 16 bytes a row; one launch for the answers to each rank
//   group_targets   rows are sorted by log2(n) bits: 16 bytes a pass, and 60 more; 16 bytes a row
//   group_segments  40 bytes, with binary searches over the ranks for each group; 4 bytes a row

#include <algorithm>
#include <cstdint>

#include "grouping.h"
#include "common/cuda/arguments.cuh"
#include "group_rows.cuh"
#include "common/cuda/primitives.cuh"
#include "common/cuda/queue.cuh"
#include "common/cuda/warp.cuh"

namespace jztree {
namespace {

ffi::Error misfit(const char* what) {
  return invalid(std::string(what) + " was called with arrays that do not fit together.");
}

template <typename Buffer>
int64_t size_of(const Buffer& buffer) {
  return static_cast<int64_t>(buffer.element_count());
}

// Sums of particles of several ranks are unsigned 64-bit words, which atomic operations know by this name.
__device__ unsigned long long* atomic_word(uint64_t* word) { return reinterpret_cast<unsigned long long*>(word); }

// ---- group_parts ----

// The rows that hold particles, or none if a root is bad: then nothing may be looked up by it.
struct GoodRows {
  Count num;
  const int32_t* bad_row;

  __device__ int64_t operator()() const { return *bad_row < 0 ? num() : 0; }
};

// As unsigned numbers the smallest row wins over -1.
__global__ void find_bad_row(Roots roots, const int32_t* rank, Count num, int32_t* bad_row) {
  int64_t row = thread_index();
  if (row < num() && roots.bad(row, *rank, num.rows))
    atomicMin(reinterpret_cast<unsigned*>(bad_row), static_cast<unsigned>(row));
}

// Roots on other ranks as keys in which rows have `bits` bits, at most 31; a key of all ones comes after all of them.
struct PartKeys {
  Roots roots;
  int bits;

  int end_bit() const { return bits + 31; }
  JZTREE_BOTH uint64_t last() const { return (uint64_t{1} << (bits + 31)) - 1; }
  __device__ uint64_t key(int64_t row) const {
    return static_cast<uint64_t>(roots.rank[row]) << bits | static_cast<uint64_t>(roots.row[row]);
  }
};

// Parts that this rank owns are known by their roots. Labels of the others are set later.
__global__ void begin_parts(PartKeys keys, const int32_t* rank, GoodRows num, int32_t* label, int32_t* count,
                            uint64_t* key, int32_t* rows) {
  int64_t row = thread_index(), n = num.num.rows;
  bool here = row < num(), mine = here && keys.roots.rank[row] == *rank;
  int32_t root = mine ? keys.roots.row[row] : -1;
  count_members(count, root);
  if (row >= n) return;
  label[row] = mine ? root : static_cast<int32_t>(row);
  key[row] = here && !mine ? keys.key(row) : keys.last();
  rows[row] = static_cast<int32_t>(row);
}

// Rows sorted by the keys of their parts, of which those equal to `last` are in none.
struct SortedParts {
  const uint64_t* key;
  const int32_t* rows;
  int64_t n;
  uint64_t last;

  __device__ bool in_part(int64_t i) const { return i < n && key[i] != last; }
  __device__ bool begins(int64_t i) const { return i == 0 || key[i] != key[i - 1]; }
  __device__ bool ends(int64_t i) const { return i + 1 == n || key[i] != key[i + 1]; }
};

// Which part, counted from 1, and where it begins. Running sums of such pairs number the parts.
struct PartsSoFar {
  uint64_t packed;

  __device__ static PartsSoFar begin(int64_t i) { return {uint64_t{1} << 32 | static_cast<uint64_t>(i)}; }
  __device__ int64_t parts() const { return static_cast<int64_t>(packed >> 32); }
  __device__ int64_t first() const { return static_cast<int64_t>(packed & 0xffffffffu); }
};

struct JoinParts {
  JZTREE_BOTH uint64_t operator()(uint64_t before, uint64_t here) const {
    uint64_t parts = (before >> 32) + (here >> 32);
    return parts << 32 | ((here >> 32 ? here : before) & 0xffffffffu);
  }
};

__global__ void mark_parts(SortedParts sorted, uint64_t* so_far) {
  int64_t i = thread_index();
  if (i < sorted.n) so_far[i] = sorted.in_part(i) && sorted.begins(i) ? PartsSoFar::begin(i).packed : 0;
}

__global__ void list_parts(SortedParts sorted, const uint64_t* so_far, int32_t* label, int32_t* count, int32_t* parts,
                           int32_t* num_parts) {
  int64_t i = thread_index();
  if (!sorted.in_part(i)) return;
  PartsSoFar here{so_far[i]};
  int32_t first = sorted.rows[here.first()];  // rows of one key are in their order
  label[sorted.rows[i]] = first;
  if (sorted.begins(i)) parts[here.parts() - 1] = first;
  if (!sorted.ends(i)) return;
  count[first] = static_cast<int32_t>(i + 1 - here.first());
  if (!sorted.in_part(i + 1)) *num_parts = static_cast<int32_t>(here.parts());
}

// Parts `chunk` places apart must not be in one window of one rank. Windows of one row always suffice.
__global__ void cut_windows(Roots roots, const int32_t* parts, Count num_parts, int64_t chunk, int32_t* windows) {
  int64_t part = thread_index();
  if (part == 0) atomicMax(windows, 1);
  if (part < chunk || part >= num_parts()) return;
  int64_t here = parts[part], before = parts[part - chunk];
  if (roots.rank[here] != roots.rank[before]) return;
  Windows cut{num_parts.rows, 1};
  while (cut.count < (1 << 30) && cut.of(roots.row[here]) == cut.of(roots.row[before])) cut.count *= 2;
  if (cut.count > 1) atomicMax(windows, static_cast<int32_t>(cut.count));
}

// Rows in the order of their parts, and what they are told by their labels and counts.
void sort_parts(Queue& queue, const PartKeys& keys, const int32_t* rank, const GoodRows& num, int32_t* label,
                int32_t* count, int32_t* parts, int32_t* num_parts) {
  int64_t n = num.num.rows;
  cub::DoubleBuffer<uint64_t> key(queue.scratch<uint64_t>(n), queue.scratch<uint64_t>(n));
  cub::DoubleBuffer<int32_t> rows(queue.scratch<int32_t>(n), queue.scratch<int32_t>(n));
  queue.launch_over(n, begin_parts, keys, rank, num, label, count, key.Current(), rows.Current());
  sort_pairs(queue, key, rows, n, 0, keys.end_bit());
  SortedParts sorted{key.Current(), rows.Current(), n, keys.last()};
  uint64_t* so_far = key.Alternate();
  queue.launch_over(n, mark_parts, sorted, so_far);
  inclusive_scan(queue, so_far, so_far, JoinParts{}, n);
  queue.launch_over(n, list_parts, sorted, so_far, label, count, parts, num_parts);
}

ffi::Error group_parts(cudaStream_t stream, DeviceMemory scratch, ffi::Buffer<ffi::S32> rank,
                       ffi::Buffer<ffi::S32> root_rank, ffi::Buffer<ffi::S32> root_row, ffi::Buffer<ffi::S32> num,
                       ffi::Result<ffi::Buffer<ffi::S32>> label, ffi::Result<ffi::Buffer<ffi::S32>> count,
                       ffi::Result<ffi::Buffer<ffi::S32>> parts, ffi::Result<ffi::Buffer<ffi::S32>> num_parts,
                       ffi::Result<ffi::Buffer<ffi::S32>> windows, ffi::Result<ffi::Buffer<ffi::S32>> bad_row,
                       int64_t chunk) {
  return guarded([&] {
    int64_t n = size_of(root_rank);
    if (size_of(root_row) != n || size_of(*label) != n || size_of(*count) != n || size_of(*parts) != n || chunk < 1)
      return misfit("group_parts");
    Queue queue(stream, scratch);
    Roots roots{root_rank.typed_data(), root_row.typed_data()};
    queue.fill_bytes(bad_row->typed_data(), 0xff, 1);
    queue.fill_bytes(parts->typed_data(), 0xff, n);
    queue.fill_bytes(count->typed_data(), 0, n);
    queue.fill_bytes(num_parts->typed_data(), 0, 1);
    queue.fill_bytes(windows->typed_data(), 0, 1);
    GoodRows good{read_count(num, n), bad_row->typed_data()};
    if (n > 0) {
      queue.launch_over(n, find_bad_row, roots, rank.typed_data(), good.num, bad_row->typed_data());
      sort_parts(queue, PartKeys{roots, bits_of(n - 1)}, rank.typed_data(), good, label->typed_data(),
                 count->typed_data(), parts->typed_data(), num_parts->typed_data());
    }
    queue.launch_over(std::max<int64_t>(n, 1), cut_windows, roots, parts->typed_data(), read_count(*num_parts, n),
                      chunk, windows->typed_data());
    return ffi::Error::Success();
  });
}

// ---- pack_parts ----

// The windows that the rows of all ranks are cut into, and one of them.
struct OneWindow {
  int64_t rows;
  const int32_t *number, *windows;

  __device__ Windows cut() const { return {rows, *windows > 1 ? *windows : 1}; }
  __device__ int64_t begin() const { return cut().begin(*number); }
  __device__ int64_t end() const { return cut().begin(*number + 1); }
  __device__ bool holds(int64_t row) const { return row >= 0 && row < rows && cut().of(row) == *number; }
};

// Which parts go to each rank: parts are in the order of their roots.
__global__ void split_parts(Roots roots, const int32_t* parts, Count num_parts, OneWindow window, int64_t ranks,
                            int64_t chunk, int32_t* starts, int32_t* counts) {
  int64_t rank = thread_index();
  if (rank >= ranks) return;
  auto first_from = [&](int64_t row) {
    int64_t first = 0, last = num_parts();
    while (first < last) {
      int64_t middle = (first + last) / 2;
      bool before = roots.key(parts[middle]) < Roots::key_of(rank, row);
      (before ? first : last) = before ? middle + 1 : middle;
    }
    return first;
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

ffi::Error pack_parts(cudaStream_t stream, DeviceMemory scratch, ffi::Buffer<ffi::S32> root_rank,
                      ffi::Buffer<ffi::S32> root_row, ffi::Buffer<ffi::S32> count, ffi::Buffer<ffi::S32> parts,
                      ffi::Buffer<ffi::S32> num_parts, ffi::Buffer<ffi::S32> window, ffi::Buffer<ffi::S32> windows,
                      ffi::Result<ffi::Buffer<ffi::S32>> buffer, ffi::Result<ffi::Buffer<ffi::S32>> starts,
                      ffi::Result<ffi::Buffer<ffi::S32>> counts) {
  return guarded([&] {
    auto shape = buffer->dimensions();
    int64_t n = size_of(root_rank);
    if (size_of(root_row) != n || size_of(count) != n || size_of(parts) != n || shape.size() != 3 || shape[2] != 2 ||
        size_of(*starts) != shape[0] || size_of(*counts) != shape[0])
      return misfit("pack_parts");
    Queue queue(stream, scratch);
    Roots roots{root_rank.typed_data(), root_row.typed_data()};
    queue.launch_over(shape[0], split_parts, roots, parts.typed_data(), read_count(num_parts, n),
                      OneWindow{n, window.typed_data(), windows.typed_data()}, shape[0], shape[1], starts->typed_data(),
                      counts->typed_data());
    queue.launch_over(shape[0] * shape[1], fill_buffer, root_row.typed_data(), count.typed_data(), parts.typed_data(),
                      starts->typed_data(), counts->typed_data(), shape[0], shape[1], buffer->typed_data());
    return ffi::Error::Success();
  });
}

// ---- settle_groups ----

// What an owner knows of its groups so far: the particles of those that are listed, and of the largest.
struct Tally {
  uint64_t listed, largest;
};

// The groups of a window. size[row]: the particles of the group with its root in this row that are on other ranks.
struct WindowGroups {
  OneWindow window;
  const int32_t *rank, *root_rank, *count;
  uint64_t npart_min;

  __device__ bool owned(int64_t row) const {
    return row < window.rows && count[row] > 0 && root_rank[row] == *rank && window.holds(row);
  }
  __device__ bool told_of(int64_t row) const { return window.holds(row) && count[row] > 0; }
  __device__ uint64_t particles(int64_t row, const uint64_t* size) const {
    return size[row] + static_cast<uint64_t>(count[row]);
  }
  __device__ uint64_t listed(int64_t row, const uint64_t* size) const {
    uint64_t all = owned(row) ? particles(row, size) : 0;
    return all >= npart_min ? all : 0;
  }
};

__global__ void add_told(WindowGroups groups, const int32_t* told, int64_t entries, uint64_t* size) {
  int64_t entry = thread_index();
  if (entry >= entries) return;
  int64_t row = told[2 * entry];
  if (row >= 0 && groups.told_of(row))
    atomicAdd(atomic_word(size + row), static_cast<unsigned long long>(told[2 * entry + 1]));
}

__global__ void list_groups(WindowGroups groups, const uint64_t* size, uint64_t* place, Tally* tally) {
  int64_t row = thread_index();
  uint64_t largest = groups.owned(row) ? groups.particles(row, size) : 0;
  if (row < groups.window.rows) place[row] = groups.listed(row, size);
  largest = warp_max(largest);
  // A look first, which may see too small a number and then costs an atomic operation: few warps find more.
  const volatile uint64_t* known = &tally->largest;
  if (lane_index() == 0 && largest > *known)
    atomicMax(atomic_word(&tally->largest), static_cast<unsigned long long>(largest));
}

// From here on a group's entry in `next` is the place of its next part. place: the listed particles before each row.
__global__ void place_groups(WindowGroups groups, const uint64_t* place, const Tally* before, uint64_t* next,
                             uint64_t* places, Tally* tally) {
  int64_t row = thread_index();
  if (row >= groups.window.rows) return;
  uint64_t listed = groups.listed(row, next);
  if (row == groups.window.rows - 1) tally->listed = before->listed + place[row] + listed;
  if (!groups.owned(row)) return;
  uint64_t at = listed > 0 ? before->listed + place[row] : not_listed;
  places[row] = at;
  next[row] = listed > 0 ? at + static_cast<uint64_t>(groups.count[row]) : not_listed;
}

// The answers to one rank. It has one part of a group at most, so no other thread works on this group; answers to the
// next rank wait until this kernel is done.
__global__ void answer_rank(WindowGroups groups, const int32_t* told, int64_t chunk, uint64_t* next,
                            uint64_t* answers) {
  int64_t entry = thread_index();
  if (entry >= chunk) return;
  int64_t row = told[2 * entry];
  bool known = row >= 0 && groups.told_of(row);
  uint64_t place = known ? next[row] : 0;
  answers[entry] = place;
  if (known && place != not_listed) next[row] = place + static_cast<uint64_t>(told[2 * entry + 1]);
}

ffi::Error settle_groups(cudaStream_t stream, DeviceMemory scratch, ffi::Buffer<ffi::S32> rank,
                         ffi::Buffer<ffi::S32> root_rank, ffi::Buffer<ffi::S32> count, ffi::Buffer<ffi::S32> told,
                         ffi::Buffer<ffi::S32> window, ffi::Buffer<ffi::S32> windows, ffi::Buffer<ffi::U32> old_places,
                         ffi::Buffer<ffi::U32> old_tally, ffi::Result<ffi::Buffer<ffi::U32>> answers,
                         ffi::Result<ffi::Buffer<ffi::U32>> places, ffi::Result<ffi::Buffer<ffi::U32>> tally,
                         int64_t npart_min) {
  return guarded([&] {
    int64_t n = size_of(root_rank), entries = size_of(told) / 2;
    auto shape = told.dimensions();
    if (size_of(count) != n || shape.size() != 3 || shape[2] != 2 || size_of(*answers) != 2 * entries ||
        size_of(old_places) != 2 * n || size_of(*places) != 2 * n || size_of(old_tally) != 4 || size_of(*tally) != 4)
      return misfit("settle_groups");
    Queue queue(stream, scratch);
    if (places->typed_data() != old_places.typed_data())
      queue.copy(places->typed_data(), old_places.typed_data(), 2 * n);
    queue.copy(tally->typed_data(), old_tally.typed_data(), 4);
    auto* before = static_cast<const Tally*>(old_tally.untyped_data());
    auto* after = static_cast<Tally*>(tally->untyped_data());
    WindowGroups groups{{n, window.typed_data(), windows.typed_data()},
                        rank.typed_data(),
                        root_rank.typed_data(),
                        count.typed_data(),
                        static_cast<uint64_t>(npart_min)};
    auto* size = queue.scratch<uint64_t>(n);
    auto* place = queue.scratch<uint64_t>(n);
    queue.fill_bytes(size, 0, n);
    queue.launch_over(entries, add_told, groups, told.typed_data(), entries, size);
    if (n > 0) {
      queue.launch_over(n, list_groups, groups, size, place, after);
      exclusive_sum(queue, place, place, n);
      queue.launch_over(n, place_groups, groups, place, before, size, static_cast<uint64_t*>(places->untyped_data()),
                        after);
    }
    for (int64_t r = 0, chunk = shape[1]; r < shape[0]; ++r)
      queue.launch_over(chunk, answer_rank, groups, told.typed_data() + 2 * chunk * r, chunk, size,
                        static_cast<uint64_t*>(answers->untyped_data()) + chunk * r);
    return ffi::Error::Success();
  });
}

// ---- group_targets and group_segments ----

__global__ void tally_ranks(const uint32_t* tallies, int64_t ranks, uint64_t* particles) {
  int64_t rank = thread_index();
  if (rank <= ranks)
    particles[rank] = rank < ranks ? GlobalOrder::particles_of(tallies + GlobalOrder::tally_words * rank) : 0;
}

GlobalOrder global_order(Queue& queue, const ffi::Buffer<ffi::U32>& tallies) {
  int64_t ranks = size_of(tallies) / GlobalOrder::tally_words;
  auto* starts = queue.scratch<uint64_t>(ranks + 1);
  queue.launch_over(ranks + 1, tally_ranks, tallies.typed_data(), ranks, starts);
  exclusive_sum(queue, starts, starts, ranks + 1);
  return GlobalOrder{tallies.typed_data(), starts, ranks};
}

// Groups by their first rows; `none` for rows of no listed group.
__global__ void key_listed(const int32_t* label, const uint64_t* places, Count num, uint32_t* key, int32_t* rows) {
  int64_t row = thread_index();
  if (row >= num.rows) return;
  int64_t first = row < num() ? label[row] : -1;
  bool listed = first >= 0 && first <= row && places[first] != not_listed;
  key[row] = listed ? static_cast<uint32_t>(first) : static_cast<uint32_t>(num.rows);
  rows[row] = static_cast<int32_t>(row);
}

// begin[key]: where the rows of this key begin in their order.
__global__ void find_begins(const uint32_t* key, int64_t n, int32_t* begin) {
  int64_t i = thread_index();
  if (i < n && (i == 0 || key[i] != key[i - 1])) begin[key[i]] = static_cast<int32_t>(i);
}

// What says where a particle goes.
struct Targets {
  Roots roots;
  const uint64_t* places;
  GlobalOrder order;
  Count rank;

  // The place of the row that is the `before`-th of its part or, if that is not listed, of all such rows here.
  __device__ uint64_t place(int64_t row, int64_t part, bool listed, uint64_t before) const {
    if (!listed) return order.unlisted(rank()) + before;
    int64_t owner = roots.rank[row];
    if (owner < 0 || owner >= order.ranks) return order.total();
    return places[part] + order.groups(owner) + before;
  }
  __device__ bool is_root(int64_t row) const { return roots.rank[row] == rank() && roots.row[row] == row; }
};

// i-th in the order of keys is rows[i].
__global__ void write_targets(Targets targets, const uint32_t* key, const int32_t* rows, const int32_t* begin,
                              Count num, int32_t* to_rank, int32_t* target) {
  int64_t i = thread_index(), n = num.rows;
  if (i >= n) return;
  int64_t row = rows[i], part = key[i];
  bool here = row < num(), listed = part < n;
  uint64_t total = targets.order.total(), place = total;
  if (here) place = targets.place(row, part, listed, static_cast<uint64_t>(i - begin[part]));
  bool goes = place < total;
  Shares shares(total, static_cast<uint64_t>(targets.order.ranks));
  uint64_t to = goes ? shares.rank_of(place) : 0;
  int32_t there = goes ? static_cast<int32_t>(place - shares.start(to)) : 0;
  to_rank[row] = goes ? static_cast<int32_t>(to) : -1;
  target[row] = listed && targets.is_root(row) ? ~there : there;
}

// Rows sorted by their groups tell how many come before each.
ffi::Error group_targets(cudaStream_t stream, DeviceMemory scratch, ffi::Buffer<ffi::S32> rank,
                         ffi::Buffer<ffi::S32> root_rank, ffi::Buffer<ffi::S32> root_row, ffi::Buffer<ffi::S32> num,
                         ffi::Buffer<ffi::S32> label, ffi::Buffer<ffi::U32> places, ffi::Buffer<ffi::U32> tallies,
                         ffi::Result<ffi::Buffer<ffi::S32>> to_rank, ffi::Result<ffi::Buffer<ffi::S32>> target) {
  return guarded([&] {
    int64_t n = size_of(root_rank);
    if (size_of(root_row) != n || size_of(label) != n || size_of(places) != 2 * n || size_of(*to_rank) != n ||
        size_of(*target) != n || size_of(tallies) < GlobalOrder::tally_words)
      return misfit("group_targets");
    if (n == 0) return ffi::Error::Success();
    Queue queue(stream, scratch);
    Count count = read_count(num, n);
    auto* place = static_cast<const uint64_t*>(places.untyped_data());
    GlobalOrder order = global_order(queue, tallies);
    Roots roots{root_rank.typed_data(), root_row.typed_data()};
    Targets targets{roots, place, order, read_count(rank, order.ranks - 1)};
    cub::DoubleBuffer<uint32_t> keys(queue.scratch<uint32_t>(n + 1), queue.scratch<uint32_t>(n + 1));
    cub::DoubleBuffer<int32_t> rows(queue.scratch<int32_t>(n), queue.scratch<int32_t>(n));
    queue.launch_over(n, key_listed, label.typed_data(), place, count, keys.Current(), rows.Current());
    sort_pairs(queue, keys, rows, n, 0, bits_of(n));
    auto* begin = reinterpret_cast<int32_t*>(keys.Alternate());
    queue.launch_over(n, find_begins, keys.Current(), n, begin);
    queue.launch_over(n, write_targets, targets, keys.Current(), rows.Current(), begin, count, to_rank->typed_data(),
                      target->typed_data());
    return ffi::Error::Success();
  });
}

// This rank's share of the order of all particles.
struct MyShare {
  GlobalOrder order;
  Count rank, num;

  __device__ uint64_t start() const {
    return Shares(order.total(), static_cast<uint64_t>(order.ranks)).start(static_cast<uint64_t>(rank()));
  }

  // The last rank whose part of the order starts before `at`, or there too with `there`; -1 if none does.
  __device__ int64_t owner(uint64_t at, bool there) const {
    int64_t first = 0, last = order.ranks;
    while (first < last) {
      int64_t middle = (first + last) / 2;
      bool before = there ? order.groups(middle) <= at : order.groups(middle) < at;
      (before ? first : last) = before ? middle + 1 : middle;
    }
    return first - 1;
  }

  // The row behind the listed groups of an owner.
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

// number[row]: groups that begin before the row, for the rows and one more.
__global__ void list_begins(const int32_t* number, int64_t n, int64_t room, int32_t* ngroups, int32_t* offset) {
  int64_t row = thread_index();
  if (row == 0) *ngroups = static_cast<int32_t>(std::min<int64_t>(number[n], room));
  if (row < n && number[row + 1] > number[row] && number[row] < room) offset[number[row]] = static_cast<int32_t>(row);
}

// A group ends where the next one begins, or with the groups of its owner.
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

ffi::Error group_segments(cudaStream_t stream, DeviceMemory scratch, ffi::Buffer<ffi::S32> rank,
                          ffi::Buffer<ffi::S32> target, ffi::Buffer<ffi::S32> num, ffi::Buffer<ffi::U32> tallies,
                          ffi::Result<ffi::Buffer<ffi::S32>> place, ffi::Result<ffi::Buffer<ffi::S32>> head,
                          ffi::Result<ffi::Buffer<ffi::S32>> ngroups, ffi::Result<ffi::Buffer<ffi::S32>> count,
                          ffi::Result<ffi::Buffer<ffi::S32>> offset) {
  return guarded([&] {
    int64_t n = size_of(target), room = size_of(*count);
    if (size_of(*place) != n || size_of(*offset) != room || size_of(tallies) < GlobalOrder::tally_words)
      return misfit("group_segments");
    Queue queue(stream, scratch);
    GlobalOrder order = global_order(queue, tallies);
    MyShare share{order, read_count(rank, order.ranks - 1), read_count(num, n)};
    auto* number = queue.scratch<int32_t>(n + 1);
    queue.fill_bytes(number, 0, n + 1);
    queue.fill_bytes(count->typed_data(), 0, room);
    queue.fill_bytes(offset->typed_data(), 0, room);
    queue.launch_over(n, place_arrivals, target.typed_data(), share.num, place->typed_data(), number);
    exclusive_sum(queue, number, number, n + 1);
    queue.launch_over(n + 1, list_begins, number, n, room, ngroups->typed_data(), offset->typed_data());
    queue.launch_over(room + 1, measure_groups, share, ngroups->typed_data(), room, offset->typed_data(),
                      count->typed_data(), head->typed_data());
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_group_parts, group_parts, "chunk");
JZTREE_HANDLER(jztree_pack_parts, pack_parts);
JZTREE_HANDLER(jztree_settle_groups, settle_groups, "npart_min");
JZTREE_HANDLER(jztree_group_targets, group_targets);
JZTREE_HANDLER(jztree_group_segments, group_segments);

}  // namespace jztree
