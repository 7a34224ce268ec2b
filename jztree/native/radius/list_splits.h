// Lists of any length, one for each output row, one behind the other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace jztree {

// How long a list is, or where it begins; right if that is below 2^31.
inline int32_t narrowed(int64_t number) {
  return static_cast<int32_t>(std::min<int64_t>(number, std::numeric_limits<int32_t>::max()));
}

// Lays out the lists of `in`, which has splits, total, q() and room(), and writes them if they fit. count(): puts how
// long that of the i-th output row is at splits[i + 1], where it is not 0. Returns how many entries are written.
template <typename In, typename Count, typename Write>
int64_t make_lists(const In& in, const Count& count, const Write& write) {
  std::fill_n(in.splits, in.q() + 1, 0);
  count();
  int64_t total = 0;
  for (int64_t row = 1; row <= in.q(); ++row) {
    total += in.splits[row];
    in.splits[row] = narrowed(total);
  }
  in.total[0] = static_cast<int32_t>(total >> 31);
  in.total[1] = static_cast<int32_t>(total & 0x7fffffff);
  if (total > in.room()) return 0;
  write();
  return total;
}

}  // namespace jztree
