#include "entry_lists.h"

#include <algorithm>
#include <cstdint>

#include "common/cpu/context.h"

namespace jztree {
namespace {

constexpr int64_t grain = 1 << 14;

// One search per block of entries; the list of each further entry follows from the splits.
void entry_lists(const Parallel& parallel, const EntryLists& in) {
  const int64_t start = *in.start, number = in.number();
  parallel.blocks(in.lists.rows(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t list = list_of_entry(in.splits, number, start + begin); begin < end; ++list) {
      const int64_t last = list < number ? std::clamp(in.splits[list + 1] - start, begin, end) : end;
      std::fill(in.lists + begin, in.lists + last, static_cast<int32_t>(list));
      begin = last;
    }
  });
}

}  // namespace

JZTREE_PLAIN_KERNEL(entry_lists, EntryLists);

}  // namespace jztree
