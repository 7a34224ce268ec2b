// One thread adds the particles of a group. All other steps have a thread per row. Not tuned on a GPU yet.

#include <cstdint>

#include "common/cuda/context.cuh"
#include "density_sets.h"

namespace jztree {
namespace {

__global__ void begin_candidates(SetForest sets) {
  const int64_t candidate = thread_index();
  if (candidate >= sets.candidates) return;
  sets.parent[candidate] = -2;
  sets.height[candidate] = -1;
}

__global__ void take_set_places(SetForest sets) {
  if (thread_index() < sets.rows) sets.take_place(thread_index());
}

__global__ void find_denser(SetForest sets) {
  if (thread_index() < sets.rows) sets.find_denser(thread_index());
}

__global__ void join_groups(SetForest sets) {
  if (thread_index() < sets.groups) sets.join(thread_index());
}

__global__ void write_rows(SetForest sets) {
  if (thread_index() < sets.rows) sets.write(thread_index());
}

void density_sets(Queue& queue, const DensitySets& in) {
  const SetForest sets(in, [&](int64_t n) { return queue.scratch<int32_t>(n); });
  queue.fill_bytes(sets.place, 0, sets.rows);
  queue.launch_over(sets.candidates, begin_candidates, sets);
  queue.launch_over(sets.rows, take_set_places, sets);
  queue.launch_over(sets.rows, find_denser, sets);
  queue.launch_over(sets.groups, join_groups, sets);
  queue.launch_over(sets.rows, write_rows, sets);
}

}  // namespace

JZTREE_PLAIN_KERNEL(density_sets, DensitySets);

}  // namespace jztree
