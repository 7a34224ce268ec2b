#include "group_by_rank.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "common/cpu/context.h"

namespace jztree {
namespace {

void group_by_rank(const Parallel& parallel, const GroupByRank& in) {
  int64_t ranks = in.ranks(), count = in.num(), grain = std::max<int64_t>(1 << 14, 4 * ranks);
  int64_t blocks = (count + grain - 1) / grain;
  // next[b * ranks + r]: position of the next row of block b for rank r.
  std::vector<int64_t> next(static_cast<size_t>(blocks * ranks), 0);
  // Neighbouring rows usually go to the same rank, so runs of such rows are processed together.
  auto each_run = [&](int64_t block, auto&& work) {
    const int64_t last = std::min(count, (block + 1) * grain);
    for (int64_t i = block * grain, end; i < last; i = end) {
      const int32_t rank = in.rank[i];
      for (end = i + 1; end < last && in.rank[end] == rank; ++end) continue;
      if (rank >= 0 && rank < ranks) work(i, end, next[static_cast<size_t>(block * ranks + rank)]);
    }
  };
  parallel.blocks(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) each_run(b, [](int64_t i, int64_t end, int64_t& place) { place += end - i; });
  });
  int64_t place = 0;
  for (int64_t r = 0; r < ranks; ++r) {
    int64_t first = place;
    for (int64_t b = 0; b < blocks; ++b) {
      int64_t rows_here = next[static_cast<size_t>(b * ranks + r)];
      next[static_cast<size_t>(b * ranks + r)] = place;
      place += rows_here;
    }
    in.counts[r] = static_cast<int32_t>(place - first);
  }
  parallel.blocks(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      each_run(b, [&](int64_t i, int64_t end, int64_t& to) {
        std::iota(in.order + to, in.order + to + (end - i), static_cast<int32_t>(i));
        to += end - i;
      });
  });
}

}  // namespace

JZTREE_PLAIN_KERNEL(group_by_rank, GroupByRank);

}  // namespace jztree
