#include "group_order.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

#include "common/cpu/context.h"

namespace jztree {
namespace {

// Returns the number of listed groups.
int64_t order_by_group(const Parallel& parallel, const GroupOrder& in, int64_t num) {
  const int32_t* label = in.label;
  Scratch<std::atomic<int32_t>> members(num);
  auto member = [&](int64_t row) -> std::atomic<int32_t>& { return members[row]; };
  parallel.blocks(num, 1 << 15, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) member(row).store(0, std::memory_order_relaxed);
  });
  parallel.blocks(num, 1 << 15, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) member(label[row]).fetch_add(1, std::memory_order_relaxed);
  });
  // After the call, member(first row) is the position of the group's next particle in the order, or -1 for groups that
  // are too small.
  int64_t groups = 0, next = 0;
  for (int64_t row = 0; row < num; ++row) {
    int32_t size = member(row).load(std::memory_order_relaxed);
    bool listed = size >= in.npart_min;
    member(row).store(listed ? static_cast<int32_t>(next) : -1, std::memory_order_relaxed);
    if (!listed) continue;
    in.count[groups] = size;
    in.offset[groups++] = static_cast<int32_t>(next);
    next += size;
  }
  for (int64_t row = 0; row < num; ++row) {
    std::atomic<int32_t>& place = member(label[row]);
    int32_t at = place.load(std::memory_order_relaxed);
    if (at >= 0) place.store(at + 1, std::memory_order_relaxed);
    in.order[at >= 0 ? at : next++] = static_cast<int32_t>(row);
  }
  for (int64_t row = num; row < in.label.rows(); ++row) in.order[row] = static_cast<int32_t>(row);
  return groups;
}

void group_order(const Parallel& parallel, const GroupOrder& in) {
  int64_t rows = in.num();
  for (int64_t row = 0; row < rows; ++row)
    if (in.label[row] < 0 || in.label[row] >= rows)
      throw Refusal("row " + std::to_string(row) + " has a group label outside the particles.");
  std::fill_n(in.count.data, in.room(), 0);
  std::fill_n(in.offset, in.room(), 0);
  *in.ngroups = static_cast<int32_t>(order_by_group(parallel, in, rows));
}

}  // namespace

JZTREE_PLAIN_KERNEL(group_order, GroupOrder);

}  // namespace jztree
