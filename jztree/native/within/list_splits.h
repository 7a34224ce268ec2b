// Lists of any length, one per output row, stored one after the other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "common/cpu/memory.h"
#include "common/cpu/parallel.h"

namespace jztree {

// The length or the start of a list; correct below 2^31.
inline int32_t narrowed(int64_t number) {
  return static_cast<int32_t>(std::min<int64_t>(number, std::numeric_limits<int32_t>::max()));
}

// Replace the lengths of lists by their ends. Returns the sum of the lengths.
inline int64_t find_ends(const Parallel& parallel, int32_t* lengths, int64_t number) {
  const int64_t grain = std::max<int64_t>(1 << 14, number / (4 * parallel.threads()) + 1);
  std::vector<int64_t> starts(static_cast<size_t>((number + grain - 1) / grain));
  parallel.blocks(number, grain, [&](int64_t begin, int64_t end) {
    for (int64_t& sum = starts[static_cast<size_t>(begin / grain)]; begin < end; ++begin) sum += lengths[begin];
  });
  int64_t total = 0;
  for (int64_t& sum : starts) total += std::exchange(sum, total);
  parallel.blocks(number, grain, [&](int64_t begin, int64_t end) {
    for (int64_t sum = starts[static_cast<size_t>(begin / grain)]; begin < end; ++begin) {
      sum += lengths[begin];
      lengths[begin] = narrowed(sum);
    }
  });
  return total;
}

// Lay out the lists of `in`, and write them if they fit. In: has splits, total, q() and room(). count(): writes the
// length of the i-th output row's list to splits[i + 1], unless the length is 0. Returns the number of written entries.
template <typename In, typename Count, typename Write>
int64_t make_lists(const Parallel& parallel, const In& in, const Count& count, const Write& write) {
  parallel.blocks(in.q() + 1, 1 << 16,
                  [&](int64_t begin, int64_t end) { std::fill_n(in.splits + begin, end - begin, 0); });
  count();
  const int64_t total = find_ends(parallel, in.splits + 1, in.q());
  in.total[0] = static_cast<int32_t>(total >> 31);
  in.total[1] = static_cast<int32_t>(total & 0x7fffffff);
  if (total > in.room()) return 0;
  write();
  return total;
}

// Call work(query, begin, end) for each query of a leaf with its list. Lists may be anywhere, so those of later queries
// are prefetched by ask(begin, number), and their splits even earlier.
template <typename In, typename Queries, typename Ask, typename Work>
void each_list(const In& in, const Queries& queries, int64_t leaf, const Ask& ask, const Work& work) {
  const int64_t last = queries.leaf_row(queries.leaves()) - 1;
  auto split = [&](int64_t query) { return in.splits + in.queries.row_of(std::min(query, last)); };
  for (int64_t query = queries.leaf_row(leaf); query < queries.leaf_row(leaf + 1); ++query) {
    __builtin_prefetch(split(query + 2 * prefetch_distance));
    const int32_t *later = split(query + prefetch_distance), *now = split(query);
    ask(later[0], later[1] - later[0]);
    work(query, now[0], now[1]);
  }
}

}  // namespace jztree
