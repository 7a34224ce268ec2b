// Distances between a group of particles and the nodes and leaves of a staged hierarchy, in vector loops.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "candidate.h"
#include "common/geometry.h"
#include "staged_tree.h"

namespace jztree {

// Lower bounds of the squared distance between a box and `count` nodes, which lie in the flat arrays from `first` on.
// `out` has room for whole blocks of lanes.
// Flattened: vectors that a function takes and returns pass through memory, a tenth of the time for small k.
template <int D, typename T>
__attribute__((flatten)) inline void node_distances(const StagedTree<D, T>& tree, const T* low, const T* high,
                                                    const T* gap_period, int64_t first, int64_t count, T* out) {
  using V = Lanes<T>;
  for (int64_t block = 0; block < count; block += lanes) {
    V sum{};
    for (int d = 0; d < D; ++d) {
      V node_low, node_high;
      load(tree.low[d] + first + block, node_low);
      load(tree.high[d] + first + block, node_high);
      V gap = interval_gap<V>(V(low[d]), V(high[d]), node_low, node_high, V(gap_period[d]));
      sum = sum + gap * gap;
    }
    store<T>(sum * below_one<T>, out + block);
  }
}

// One leaf of sources, seen from a group of query rows.
template <int D, typename T>
class LeafDistances {
 public:
  // most: the largest number of particles in a group or a leaf.
  LeafDistances(const Scale<D, T>& scale, int64_t most) : scale_(scale), near_(padded(most)) {
    for (int d = 0; d < D; ++d) {
      shifted_[d].resize(padded(most));
      // "Around the boundary" is rounded in the last bit of the period, which a factor on the gap does not cover.
      gap_period_[d] = scale.period[d] * below_one<T>;
    }
  }

  // Periods for lower bounds of distances around the boundary.
  const T* gap_period() const { return gap_period_; }

  // From now on, distances are to this leaf. low, high: the box of all the query rows.
  void set_leaf(const StagedTree<D, T>& sources, int64_t leaf, const T* low, const T* high) {
    sources_ = &sources;
    leaf_ = leaf;
    first_ = sources.leaf_row(leaf);
    count_ = sources.leaf_row(leaf + 1) - first_;
    pairwise_ = false;
    for (int d = 0; d < D; ++d) {
      x_[d] = sources.x[d] + first_;
      query_shift_[d] = query_shift_rest_[d] = 0;
    }
    if (scale_.periodic) choose_images(low, high);
  }

  // Which of up to `lanes` query rows from `begin` on may have a square of their distance to the leaf of at most
  // radius2, by the leaf's box; the first in the lowest bit.
  __attribute__((flatten)) uint32_t within(const StagedTree<D, T>& queries, int64_t begin, int64_t count,
                                           const Lanes<T>& radius2) const {
    using V = Lanes<T>;
    V sum{};
    for (int d = 0; d < D; ++d) {
      V x;
      load(queries.x[d] + begin, x);
      V low = V(sources_->low[d][leaf_]), high = V(sources_->high[d][leaf_]);
      V gap = interval_gap<V>(x, x, low, high, V(gap_period_[d]));
      sum = sum + gap * gap;
    }
    return lanes_at_most(sum * below_one<T>, radius2) & used_lanes(0, count);
  }

  // Finds the leaf's particles within radius2 of a query row, but for the row `own`; they are near(), in the order of
  // their rows, until the next call. Returns their number.
  int64_t find_near(const StagedTree<D, T>& queries, int64_t row, T radius2, int64_t own) {
    T at[D];
    for (int d = 0; d < D; ++d) at[d] = shifted_down(queries.x[d][row], query_shift_[d], query_shift_rest_[d]);
    return pairwise_ ? collect<true>(at, radius2, own) : collect<false>(at, radius2, own);
  }
  const Candidate<T>* near() const { return near_.data(); }

 private:
  static uint32_t used_lanes(int64_t block, int64_t count) {
    return count - block >= lanes ? 0xffff : (1u << (count - block)) - 1;
  }
  static size_t padded(int64_t count) { return static_cast<size_t>(count + lanes); }

  // Shifts queries or sources so that plain differences are those of the nearest images, where one shift does for all
  // pairs.
  void choose_images(const T* low, const T* high) {
    Image image[D];
    for (int d = 0; d < D; ++d) {
      image[d] = nearest_image(low[d], high[d], sources_->low[d][leaf_], sources_->high[d][leaf_], scale_.period[d]);
      pairwise_ |= image[d] == Image::depends;
    }
    if (pairwise_) return;
    for (int d = 0; d < D; ++d) {
      T period = scale_.period[d], rest = scale_.period_rest[d];
      if (image[d] == Image::shift_query) query_shift_[d] = period, query_shift_rest_[d] = rest;
      if (image[d] != Image::shift_source) continue;
      T* shifted = shifted_[d].data();
      for (int64_t i = 0; i < count_ + lanes; ++i) shifted[i] = shifted_down(x_[d][i], period, rest);
      x_[d] = shifted;
    }
  }

  template <bool Pairwise>
  int64_t collect(const T* at, T radius2, int64_t own) {
    using V = Lanes<T>;
    int64_t found = 0;
    for (int64_t block = 0; block < count_; block += lanes) {
      V sum{};
      for (int d = 0; d < D; ++d) {
        V x;
        load(x_[d] + block, x);
        V here = V(at[d]);
        V difference = here - x;
        if (Pairwise) difference = wrapped_difference<V>(here, x, V(scale_.period[d]), V(scale_.period_rest[d]));
        sum = sum + difference * difference;
      }
      uint64_t own_lane = static_cast<uint64_t>(own - first_ - block);
      uint32_t others = used_lanes(block, count_) & ~(own_lane < lanes ? 1u << own_lane : 0u);
      uint32_t near = lanes_at_most(sum, V(radius2)) & others;
      found += pack_candidates<T>(sum, near, static_cast<uint32_t>(first_ + block + 1), near_.data() + found);
    }
    return found;
  }

  const Scale<D, T>& scale_;
  std::vector<Candidate<T>> near_;
  std::vector<T> shifted_[D];
  T gap_period_[D];
  // The leaf at work.
  const StagedTree<D, T>* sources_ = nullptr;
  int64_t leaf_ = 0, first_ = 0, count_ = 0;
  const T* x_[D];
  T query_shift_[D], query_shift_rest_[D];
  bool pairwise_ = false;
};

// The largest number of particles in a leaf.
template <int D, typename T>
inline int64_t largest_leaf(const StagedTree<D, T>& tree) {
  int64_t most = 0;
  for (int64_t leaf = 0; leaf < tree.leaves(); ++leaf)
    most = std::max(most, tree.leaf_row(leaf + 1) - tree.leaf_row(leaf));
  return most;
}

}  // namespace jztree
