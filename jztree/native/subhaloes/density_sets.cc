// Threads take groups one by one. Only the search for denser neighbours, which reads most of the memory, is parallel
// within a group.

#include "density_sets.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "common/cpu/context.h"

namespace jztree {
namespace {

constexpr int64_t grain = 1 << 12;

void density_sets(const Parallel& parallel, const DensitySets& in) {
  const int64_t rows = in.rows(), groups = in.count.rows();
  Scratch<int32_t> place(rows), denser(2 * rows), link(rows), members(rows), peak(rows), slot(rows);
  const SetForest sets{in.neighbours,
                       in.order,
                       in.group,
                       in.count,
                       in.offset,
                       in.start,
                       in.first,
                       rows,
                       in.neighbours.dims[1],
                       groups,
                       in.parent.rows(),
                       in.min_count,
                       place.get(),
                       denser.get(),
                       link.get(),
                       members.get(),
                       peak.get(),
                       slot.get(),
                       in.inner,
                       in.parent.data,
                       in.height};
  auto over_all = [&](int64_t items, int64_t at_once, auto&& work) {
    parallel.blocks(items, at_once, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) work(i);
    });
  };
  for (int64_t g = 0; g < groups; ++g)
    if (!sets.is_valid(g)) throw Refusal("group " + std::to_string(g) + " has rows or candidates outside the arrays.");
  std::fill_n(in.parent.data, in.parent.rows(), -2);
  std::fill_n(in.height, in.parent.rows(), -1);
  std::fill_n(place.get(), rows, 0);
  over_all(rows, grain, [&](int64_t i) { sets.take_place(i); });
  over_all(rows, grain, [&](int64_t row) { sets.find_denser(row); });
  over_all(groups, 1, [&](int64_t g) { sets.join(g); });
  over_all(rows, grain, [&](int64_t row) { sets.write(row); });
}

}  // namespace

JZTREE_PLAIN_KERNEL(density_sets, DensitySets);

}  // namespace jztree
