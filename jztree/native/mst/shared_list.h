// A list to which all threads add items, in any order.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "common/cpu/memory.h"

namespace jztree {

class SharedList {
 public:
  explicit SharedList(int64_t capacity) : items_(capacity) {}

  void clear() { count_.store(0); }
  int64_t count() const { return count_.load(); }
  int32_t operator[](int64_t i) { return items_[i]; }

  void add(const std::vector<int32_t>& items) {
    const int64_t place = count_.fetch_add(static_cast<int64_t>(items.size()), std::memory_order_relaxed);
    std::copy(items.begin(), items.end(), items_.get() + place);
  }

 private:
  Scratch<int32_t> items_;
  std::atomic<int64_t> count_{0};
};

}  // namespace jztree
