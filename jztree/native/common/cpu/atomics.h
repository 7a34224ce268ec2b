// Words that several threads change at the same time.
#pragma once

#include <atomic>

namespace jztree {

// Lower a word to a value. A minimum does not depend on the order of the threads. Returns whether the value is at most
// the minimum so far.
template <typename T>
bool lower(std::atomic<T>& place, T value) {
  T minimum = place.load(std::memory_order_relaxed);
  while (value < minimum && !place.compare_exchange_weak(minimum, value, std::memory_order_relaxed)) {
  }
  return value <= minimum;
}

}  // namespace jztree
