// Disjoint sets of rows. Any number of threads join sets at the same time, without locks. The root of a set is its
// smallest row for any order of the joins, so the labels do not depend on the threads.
//
// After J. Jaiganesh and M. Burtscher (2018), "A high-performance connected components implementation for GPUs"
// (hooking with compare-and-swap), and R. E. Tarjan and J. van Leeuwen (1984), "Worst-case analysis of set union
// algorithms" (path halving).
//
// Why every race is harmless:
//
// 1. parent[i] <= i always. A row that is not a root never becomes one again. So cycles are impossible, and a chain of
//    parents ends at a root.
// 2. A root changes only by the compare-and-swap in unite, which fails if another thread has hooked it before; unite
//    then searches the roots again. So no join is lost, and the larger root always goes below the smaller.
// 3. find writes only parents of rows that are not roots, and only an ancestor that it has read. Another thread may
//    meanwhile have written a higher ancestor there; overwriting it makes a chain longer, never wrong.
//
// Relaxed order is enough: no other data is published through the parents, and the loops that follow start after a
// barrier.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "common/cpu/memory.h"

namespace jztree {

class UnionFind {
 public:
  explicit UnionFind(int64_t n) : parent_(n) {}

  // Only before the first join, while no other thread uses the row.
  void set(int64_t row, int64_t parent) { at(row).store(static_cast<int32_t>(parent), std::memory_order_relaxed); }

  int32_t find(int64_t row) {
    int32_t i = static_cast<int32_t>(row), parent = get(i);
    while (parent != i) {
      int32_t grandparent = get(parent);
      if (grandparent != parent) at(i).store(grandparent, std::memory_order_relaxed);
      i = grandparent;
      parent = get(i);
    }
    return i;
  }

  // The parent of a row; a root is its own parent.
  int32_t parent(int64_t row) { return get(row); }

  // Start to load the parent of a row.
  void prefetch(int64_t row) { __builtin_prefetch(&at(row)); }

  void unite(int64_t a, int64_t b) {
    for (;;) {
      int32_t high = find(a), low = find(b);
      if (high == low) return;
      if (high < low) std::swap(high, low);
      int32_t expected = high;
      if (at(high).compare_exchange_strong(expected, low, std::memory_order_relaxed)) return;
    }
  }

 private:
  std::atomic<int32_t>& at(int64_t row) { return parent_[row]; }
  int32_t get(int64_t row) { return at(row).load(std::memory_order_relaxed); }

  Scratch<std::atomic<int32_t>> parent_;
};

}  // namespace jztree
