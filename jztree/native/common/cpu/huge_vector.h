// A vector that is not filled with zeros when it grows, and lies on huge pages if it is large (memory.h).
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include "memory.h"

namespace jztree {

template <typename T>
struct HugePages {
  using value_type = T;

  HugePages() = default;
  template <typename U>
  HugePages(const HugePages<U>&) {}

  T* allocate(size_t n) { return allocate_uninitialised<T>(n); }
  void deallocate(T* begin, size_t) { std::free(begin); }

  template <typename U>
  void construct(U* place) {
    ::new (static_cast<void*>(place)) U;
  }
  template <typename U, typename... Values>
  void construct(U* place, Values&&... values) {
    ::new (static_cast<void*>(place)) U(std::forward<Values>(values)...);
  }

  bool operator==(const HugePages&) const { return true; }
  bool operator!=(const HugePages&) const { return false; }
};

template <typename T>
using HugeVector = std::vector<T, HugePages<T>>;

}  // namespace jztree
