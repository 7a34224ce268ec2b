// The time is bound by memory: 60 bytes per row, and 40 per received entry. Work arrays take 16 bytes per row. The
// answers to each rank take one launch.

#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/primitives.cuh"
#include "common/cuda/warp.cuh"
#include "one_window.cuh"
#include "settle_groups.h"

namespace jztree {
namespace {

// Sums of particles of several ranks are unsigned 64-bit words; atomic operations need this type name for them.
__device__ unsigned long long* atomic_word(uint64_t* word) { return reinterpret_cast<unsigned long long*>(word); }

// The groups of a window. size[row]: number of particles on other ranks of the group with its root in this row.
struct WindowGroups {
  OneWindow window;
  const int32_t *rank, *root_rank, *count;
  uint64_t npart_min;

  __device__ bool owned(int64_t row) const {
    return row < window.rows && count[row] > 0 && root_rank[row] == *rank && window.holds(row);
  }
  __device__ bool is_reported(int64_t row) const { return window.holds(row) && count[row] > 0; }
  __device__ uint64_t particles(int64_t row, const uint64_t* size) const {
    return size[row] + static_cast<uint64_t>(count[row]);
  }
  __device__ uint64_t listed(int64_t row, const uint64_t* size) const {
    uint64_t all = owned(row) ? particles(row, size) : 0;
    return all >= npart_min ? all : 0;
  }
};

__global__ void add_reports(WindowGroups groups, const int32_t* reports, int64_t entries, uint64_t* size) {
  int64_t entry = thread_index();
  if (entry >= entries) return;
  int64_t row = reports[2 * entry];
  if (row >= 0 && groups.is_reported(row))
    atomicAdd(atomic_word(size + row), static_cast<unsigned long long>(reports[2 * entry + 1]));
}

__global__ void list_groups(WindowGroups groups, const uint64_t* size, uint64_t* place, Tally* tally) {
  int64_t row = thread_index();
  uint64_t largest = groups.owned(row) ? groups.particles(row, size) : 0;
  if (row < groups.window.rows) place[row] = groups.listed(row, size);
  largest = warp_max(largest);
  // Read the maximum before the atomic operation: few warps have a larger value. If the value read is outdated, it is
  // smaller, and only costs an unnecessary atomic operation.
  const volatile uint64_t* earlier_largest = &tally->largest;
  if (lane_index() == 0 && largest > *earlier_largest)
    atomicMax(atomic_word(&tally->largest), static_cast<unsigned long long>(largest));
}

// After the launch, a group's entry in `next` is the place of its next part. place: number of listed particles before
// each row.
__global__ void place_groups(WindowGroups groups, const uint64_t* place, const Tally* before, uint64_t* next,
                             uint64_t* places, Tally* tally) {
  int64_t row = thread_index();
  if (row >= groups.window.rows) return;
  uint64_t listed = groups.listed(row, next);
  if (row == groups.window.rows - 1) tally->listed = before->listed + place[row] + listed;
  if (!groups.owned(row)) return;
  uint64_t start = listed > 0 ? before->listed + place[row] : not_listed;
  places[row] = start;
  next[row] = listed > 0 ? start + static_cast<uint64_t>(groups.count[row]) : not_listed;
}

// The answers to one rank. It has at most one part of a group, so no other thread works on this group; answers to the
// next rank wait until this kernel is done.
__global__ void answer_rank(WindowGroups groups, const int32_t* reports, int64_t chunk, uint64_t* next,
                            uint64_t* answers) {
  int64_t entry = thread_index();
  if (entry >= chunk) return;
  int64_t row = reports[2 * entry];
  bool reported = row >= 0 && groups.is_reported(row);
  uint64_t place = reported ? next[row] : 0;
  answers[entry] = place;
  if (reported && place != not_listed) next[row] = place + static_cast<uint64_t>(reports[2 * entry + 1]);
}

void settle_groups(Queue& queue, const SettleGroups& in) {
  int64_t n = in.rows(), chunk = in.chunk(), entries = in.ranks() * chunk;
  queue.copy(in.tally, in.old_tally, Tally::words);
  auto* before = reinterpret_cast<const Tally*>(in.old_tally);
  auto* after = reinterpret_cast<Tally*>(in.tally);
  WindowGroups groups{{n, in.window, in.windows}, in.rank, in.root_rank, in.count, static_cast<uint64_t>(in.npart_min)};
  auto* size = queue.scratch<uint64_t>(n);
  auto* place = queue.scratch<uint64_t>(n);
  queue.fill_bytes(size, 0, n);
  queue.launch_over(entries, add_reports, groups, in.reports, entries, size);
  if (n > 0) {
    queue.launch_over(n, list_groups, groups, size, place, after);
    exclusive_sum(queue, place, place, n);
    queue.launch_over(n, place_groups, groups, place, before, size, reinterpret_cast<uint64_t*>(in.places), after);
  }
  for (int64_t r = 0; r < in.ranks(); ++r)
    queue.launch_over(chunk, answer_rank, groups, in.reports + 2 * chunk * r, chunk, size,
                      reinterpret_cast<uint64_t*>(in.answers) + chunk * r);
}

}  // namespace

JZTREE_PLAIN_KERNEL(settle_groups, SettleGroups);

}  // namespace jztree
