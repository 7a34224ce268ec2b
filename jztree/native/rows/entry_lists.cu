#include <cstdint>

#include "common/cuda/context.cuh"
#include "entry_lists.h"

namespace jztree {
namespace {

__global__ void find_lists(const int32_t* splits, int64_t number, const int32_t* start, int64_t entries,
                           int32_t* lists) {
  const int64_t entry = thread_index();
  if (entry < entries) lists[entry] = static_cast<int32_t>(list_of_entry(splits, number, *start + entry));
}

void entry_lists(Queue& queue, const EntryLists& in) {
  const int64_t entries = in.lists.rows();
  queue.launch_over(entries, find_lists, in.splits, in.number(), in.start, entries, in.lists);
}

}  // namespace

JZTREE_PLAIN_KERNEL(entry_lists, EntryLists);

}  // namespace jztree
