// Disjoint sets of rows. Any number of threads join sets at the same time, without locks. The root of a set is its
// smallest row for any order of the joins, so the labels do not depend on the threads.
//
// After J. Jaiganesh and M. Burtscher (2018), "A high-performance connected components implementation for GPUs"
// (hooking with compare-and-swap), and R. E. Tarjan and J. van Leeuwen (1984), "Worst-case analysis of set union
// algorithms" (path halving). If nearly all threads query the same set, they avoid reading its root: see `in_set`.
//
// Why every race is harmless:
// * parent[i] <= i always, and a row that is not a root never becomes one again. So cycles are impossible, every walk
//   ends, and the last row of a chain is the smallest of its set.
// * A root changes only by the compare-and-swap in unite, which fails if another thread has hooked it before; unite
//   then continues from the parent that it finds there. So no join is lost.
// * Meanwhile, the row below which unite hooks a root may have been hooked itself. It is smaller and stays in its set,
//   so the chain only gets one row longer.
// * find writes only parents of rows that are not roots, and only an ancestor that it has read. Another thread may
//   meanwhile have written a higher ancestor there; overwriting it makes a chain longer, never wrong.
// * A word may be read while it is written: the result is the old or the new word, and both are ancestors. So most
//   reads are plain reads, which the cache of a multiprocessor may answer. The cached value may be outdated, but then
//   it is a lower ancestor. If a row looks like a root, it is read again from memory that all multiprocessors share
//   before the result is used. The compare-and-swap also reads this memory, and continues from the value that it finds.
#pragma once

#include <cstdint>

#include "common/cuda/loads.cuh"
#include "common/cuda/queue.cuh"

namespace jztree {

struct UnionFind {
  int32_t* parents;

  // An ancestor of the row, perhaps an outdated one.
  __device__ int32_t ancestor(int32_t row) const { return load_outdated(parents + row); }

  // The current parent on the device. The order of this read relative to others does not matter.
  __device__ int32_t parent(int32_t row) const { return load_relaxed(parents + row); }

  // Only while no other thread uses the row.
  __device__ void set(int64_t row, int64_t to) const { parents[row] = static_cast<int32_t>(to); }

  // Climb from a row to a root, or to `known_ancestor` if that is an ancestor.
  __device__ int32_t climb(int32_t row, int32_t known_ancestor) const {
    while (row != known_ancestor) {
      int32_t up = above(row);
      if (up == row || up == known_ancestor) return up;
      int32_t next = above(up);
      if (next == up) return up;
      store_relaxed(parents + row, next);
      row = next;
    }
    return row;
  }

  // The parent of a row, possibly outdated. A row that is returned as its own parent is a root now.
  __device__ int32_t above(int32_t row) const {
    int32_t up = ancestor(row);
    return up == row ? parent(row) : up;
  }

  __device__ int32_t find(int32_t row) const { return climb(row, -1); }

  // Whether a row was seen in the set of `member`; if not, the two may have been joined meanwhile. `member` becomes an
  // ancestor of itself. Rows whose parent is `member` do not read the parent of `member`: if most particles are in one
  // set, its root would be read more often than the memory can serve.
  __device__ bool in_set(int32_t row, int32_t* member) const {
    int32_t root = climb(row, *member);
    if (root == *member) return true;
    *member = find(*member);
    return root == *member;
  }

  // Join the sets of two rows. Returns whether this call joined two different sets.
  __device__ bool unite(int32_t a, int32_t b) const {
    a = find(a);
    b = find(b);
    while (a != b) {
      int32_t high = a > b ? a : b, low = a > b ? b : a;
      int32_t parent = atomicCAS(parents + high, high, low);
      if (parent == high) return true;
      a = find(parent);
      b = low;
    }
    return false;
  }

  // The root of a row in launches without joins.
  __device__ int32_t settled_root(int64_t row) const {
    int32_t root = static_cast<int32_t>(row);
    for (int32_t up = ancestor(root); up != root; up = ancestor(root)) root = up;
    return root;
  }

  // Link a row directly to its root, and return the root. Only for launches without joins in which every thread links
  // only its own row.
  __device__ int32_t settle(int64_t row) const {
    const int32_t root = settled_root(row);
    store_relaxed(parents + row, root);
    return root;
  }
};

}  // namespace jztree
