// Lists of the queries of a group while a walk finds them, by one thread, as long as they are short.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/cpu/lanes.h"

namespace jztree {

class ShortLists {
 public:
  std::vector<int64_t> numbers;  // how long each is

  void reset(int64_t count) {
    numbers.assign(static_cast<size_t>(count), 0);
    rows_.resize(static_cast<size_t>(count * stride));
  }
  // Adds to that of the i-th query the rows from `first` on that have a bit in `chosen`.
  void add(int64_t i, int64_t first, uint32_t chosen) {
    int64_t& number = numbers[static_cast<size_t>(i)];
    number += pack_chosen(chosen, static_cast<int32_t>(first), rows_.data() + i * stride + std::min(number, longest));
  }
  // Whether nothing is missing but rows of lists that are too long.
  bool all_there() const { return *std::max_element(numbers.begin(), numbers.end()) <= longest; }
  // One behind the other.
  void write(int32_t* to) const {
    const int32_t* rows = rows_.data();
    for (int64_t number : numbers) {
      to = std::copy_n(rows, number, to);
      rows += stride;
    }
  }

 private:
  // Lists of all queries of a group are to fit a cache of a core, and not all begin in the same part of it.
  static constexpr int64_t longest = 512, stride = longest + lanes;

  std::vector<int32_t> rows_;
};

}  // namespace jztree
