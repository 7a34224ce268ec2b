// The lists of a group's queries during a walk on one thread, for short lists.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/cpu/lanes.h"

namespace jztree {

class ShortLists {
 public:
  std::vector<int64_t> numbers;  // length of each list

  void reset(int64_t count) {
    numbers.assign(static_cast<size_t>(count), 0);
    rows_.resize(static_cast<size_t>(count * stride));
  }
  // Append to the list of the i-th query the rows from `first` on that have a bit in `members`.
  void add(int64_t i, int64_t first, uint32_t members) {
    int64_t& number = numbers[static_cast<size_t>(i)];
    number += pack_chosen(members, static_cast<int32_t>(first), rows_.data() + i * stride + std::min(number, longest));
  }
  // Whether all lists are complete, that is, none is too long.
  bool all_there() const { return *std::max_element(numbers.begin(), numbers.end()) <= longest; }
  // Write the lists one after the other.
  void write(int32_t* to) const {
    const int32_t* rows = rows_.data();
    for (int64_t number : numbers) {
      to = std::copy_n(rows, number, to);
      rows += stride;
    }
  }

 private:
  // The lists of a group should fit into a core's cache. The stride is not a power of two, so that the lists do not all
  // begin in the same part of the cache.
  static constexpr int64_t longest = 512, stride = longest + lanes;

  std::vector<int32_t> rows_;
};

}  // namespace jztree
