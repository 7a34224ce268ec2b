// Large arrays on huge pages. In random order, nearly every access to a large array on small pages misses the address
// cache, and fresh memory costs a page fault every 4 KiB.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#include "common/portable.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace jztree {

constexpr size_t huge_page = size_t{1} << 21;

// The number of rows by which random reads and writes are prefetched. For arrays larger than the caches, most of the
// time would otherwise be spent waiting for rows.
constexpr int64_t prefetch_distance = 16;

// Prefetch the start of a list, because the processor is unlikely to prefetch it. Inlined, because GCC removes calls of
// functions that only prefetch. Locality: 3 to bring the list into all caches, 2 into all but the first.
template <int Locality = 3, typename T>
JZTREE_INLINE inline void prefetch(const T* begin, int64_t number) {
  constexpr int64_t line = 64 / sizeof(T), some = 16;
  for (int64_t i = 0; i < std::min(number, some * line); i += line) __builtin_prefetch(begin + i, 1, Locality);
}

// Ask the system to use huge pages for a range, before the range is first written. The first and the last huge page may
// be only partly in the range: XLA places arrays side by side in a block of memory, and the system would otherwise
// clear up to 4 MiB of each array in small pages. This is a hint: if the system refuses, everything still works, but
// slower.
inline void prefer_huge_pages(void* begin, size_t bytes) {
#if defined(__linux__)
  if (bytes < huge_page / 8) return;
  uintptr_t first = reinterpret_cast<uintptr_t>(begin) & ~(huge_page - 1);
  uintptr_t last = (reinterpret_cast<uintptr_t>(begin) + bytes + huge_page - 1) & ~(huge_page - 1);
  madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#else
  (void)begin, (void)bytes;
#endif
}

// Uninitialised memory for n elements, on huge pages if it is large. std::free releases it.
template <typename T>
T* allocate_uninitialised(size_t n) {
  const size_t bytes = std::max<size_t>(1, n * sizeof(T));
  const bool large = bytes >= 2 * huge_page;
  const size_t unit = large ? huge_page : std::max(alignof(T), alignof(std::max_align_t));
  void* begin = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
  if (!begin) throw std::bad_alloc();
  if (large) prefer_huge_pages(begin, bytes);
  return static_cast<T*>(begin);
}

// An uninitialised array of n elements.
template <typename T>
class Scratch {
 public:
  explicit Scratch(int64_t n = 0) : data_(allocate_uninitialised<T>(static_cast<size_t>(n))) {}
  ~Scratch() { std::free(data_); }
  Scratch(Scratch&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  Scratch& operator=(Scratch&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }

  T* get() { return data_; }
  const T* get() const { return data_; }
  T& operator[](int64_t i) { return data_[i]; }

 private:
  T* data_;
};

}  // namespace jztree
