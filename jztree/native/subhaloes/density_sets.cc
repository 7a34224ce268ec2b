// Threads take groups one by one. Only the search for denser neighbours, which reads most of the memory, is parallel
// within a group.

#include "density_sets.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>

#include "common/cpu/context.h"

namespace jztree {
namespace {

constexpr int64_t grain = 1 << 12;

void density_sets(const Parallel& parallel, const DensitySets& in) {
  const int64_t rows = in.rows(), groups = in.count.rows();
  std::deque<Scratch<int32_t>> memory;
  const SetForest sets(in, [&](int64_t n) { return memory.emplace_back(n).get(); });
  auto over_all = [&](int64_t items, int64_t at_once, auto&& work) {
    parallel.blocks(items, at_once, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) work(i);
    });
  };
  for (int64_t g = 0; g < groups; ++g)
    if (!sets.is_valid(g)) throw Refusal("group " + std::to_string(g) + " has rows or candidates outside the arrays.");
  std::fill_n(in.parent.data, in.parent.rows(), -2);
  std::fill_n(in.height, in.parent.rows(), -1);
  std::fill_n(sets.place, rows, 0);
  over_all(rows, grain, [&](int64_t i) { sets.take_place(i); });
  over_all(rows, grain, [&](int64_t row) { sets.find_denser(row); });
  over_all(groups, 1, [&](int64_t g) { sets.join(g); });
  over_all(rows, grain, [&](int64_t row) { sets.write(row); });
}

}  // namespace

JZTREE_PLAIN_KERNEL(density_sets, DensitySets);

}  // namespace jztree
