// Disjoint sets of rows that many threads join at once, without locks. The root of a set is its smallest row, whatever
// the order in which joins happen, so the labels do not depend on the threads.
//
// After J. Jaiganesh and M. Burtscher (2018), "A high-performance connected components implementation for GPUs"
// (hooking with compare-and-swap), and R. E. Tarjan and J. van Leeuwen (1984), "Worst-case analysis of set union
// algorithms" (path halving). A set that nearly all threads ask about is not asked at its root: see `in_set`.
//
// Why every race is harmless:
// * parent[i] <= i always, and a row that is not a root never becomes one again. So there are no cycles, every walk
//   ends, and the last row of a chain is the smallest of its set.
// * A root changes only by the compare-and-swap in unite, which fails if another thread has hooked it before; unite
//   then goes on from the parent that it finds there. So no join is lost.
// * The row that unite hooks a root below may meanwhile have been hooked itself: it is smaller and stays in its set,
//   so the chain only gets one row longer.
// * find writes parents only of rows that are not roots, and only an ancestor it has read. Another thread may
//   meanwhile have written a higher ancestor there; overwriting it makes a chain longer, never wrong.
// * A word may be read while it is written: it is then the old or the new one, both ancestors. So most reads are plain
//   ones, which a multiprocessor's own cache may serve: what it holds may be outdated, but then it is an ancestor
//   further down. Only a row that looks like a root is read again where all multiprocessors see the same, before
//   anything follows from it; the compare-and-swap does so too, and goes on from what it finds.
#pragma once

#include <cstdint>

#include "common/cuda/loads.cuh"
#include "common/cuda/queue.cuh"

namespace jztree {

struct UnionFind {
  int32_t* parents;

  // An ancestor of the row, perhaps an outdated one.
  __device__ int32_t ancestor(int32_t row) const { return load_outdated(parents + row); }

  // The parent as the device has it now. The order of this read among others does not matter.
  __device__ int32_t parent(int32_t row) const { return load_relaxed(parents + row); }

  // While no other thread uses the row.
  __device__ void set(int64_t row, int64_t to) const { parents[row] = static_cast<int32_t>(to); }

  // Climbs from a row until a root, or until `known` if that is an ancestor.
  __device__ int32_t climb(int32_t row, int32_t known) const {
    while (row != known) {
      int32_t up = above(row);
      if (up == row || up == known) return up;
      int32_t next = above(up);
      if (next == up) return up;
      store_relaxed(parents + row, next);
      row = next;
    }
    return row;
  }

  // The parent of a row or an outdated one, but for roots: these are roots now.
  __device__ int32_t above(int32_t row) const {
    int32_t up = ancestor(row);
    return up == row ? parent(row) : up;
  }

  __device__ int32_t find(int32_t row) const { return climb(row, -1); }

  // Whether a row was seen in the set that `member` is in; where it was not, the two may have been joined meanwhile.
  // `member` becomes an ancestor of itself. Rows whose parent is `member` do not ask for the parent of that: if most
  // particles are in one set, its root would be read more often than the memory bears.
  __device__ bool in_set(int32_t row, int32_t* member) const {
    int32_t root = climb(row, *member);
    if (root == *member) return true;
    *member = find(*member);
    return root == *member;
  }

  // Joins the sets of two rows. Returns whether they were two and this call made them one.
  __device__ bool unite(int32_t a, int32_t b) const {
    a = find(a);
    b = find(b);
    while (a != b) {
      int32_t high = a > b ? a : b, low = a > b ? b : a;
      int32_t seen = atomicCAS(parents + high, high, low);
      if (seen == high) return true;
      a = find(seen);
      b = low;
    }
    return false;
  }

  // Hangs a row directly below its root, which it returns, in a launch that joins nothing and in which every thread
  // does this with its own row only.
  __device__ int32_t settle(int64_t row) const {
    int32_t at = static_cast<int32_t>(row);
    for (int32_t up = ancestor(at); up != at; up = ancestor(at)) at = up;
    store_relaxed(parents + row, at);
    return at;
  }
};

}  // namespace jztree
