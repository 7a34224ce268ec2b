// Distances between a group of particles and the nodes and leaves of a staged hierarchy, in vector loops.
#pragma once

#include <cstdint>
#include <vector>

#include "../common/geometry.h"
#include "staged_tree.h"

namespace jztree {

// Lower bounds of the squared distance between a box and `count` nodes, which lie in the flat arrays from `first` on.
// `out` has room for whole blocks of lanes.
template <int D, typename T>
inline void node_distances(const StagedTree<D, T>& tree, const T* low, const T* high, const T* gap_period,
                           int64_t first, int64_t count, T* out) {
  for (int64_t block = 0; block < count; block += lanes) {
    T sum[lanes] = {};
    for (int d = 0; d < D; ++d) {
      const T *node_low = tree.low[d] + first + block, *node_high = tree.high[d] + first + block;
      for (int64_t i = 0; i < lanes; ++i) {
        T gap = interval_gap(low[d], high[d], node_low[i], node_high[i], gap_period[d]);
        sum[i] += gap * gap;
      }
    }
    for (int64_t i = 0; i < lanes; ++i) out[block + i] = sum[i] * below_one<T>;
  }
}

// One leaf of sources, seen from a group of query rows.
template <int D, typename T>
class LeafDistances {
 public:
  // most: the largest number of particles in a group or a leaf.
  LeafDistances(const Scale<D, T>& scale, int64_t most)
      : scale_(scale), distance2_(padded(most)), box_distance2_(padded(most)) {
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

  int64_t first() const { return first_; }
  int64_t count() const { return count_; }

  // Lower bounds of the squared distance of the query rows [begin, begin + count) to the leaf's box.
  const T* box_distances(const StagedTree<D, T>& queries, int64_t begin, int64_t count) {
    for (int64_t block = 0; block < count; block += lanes) {
      T sum[lanes] = {};
      for (int d = 0; d < D; ++d) {
        const T* x = queries.x[d] + begin + block;
        T low = sources_->low[d][leaf_], high = sources_->high[d][leaf_];
        for (int64_t i = 0; i < lanes; ++i) {
          T gap = interval_gap(x[i], x[i], low, high, gap_period_[d]);
          sum[i] += gap * gap;
        }
      }
      T* out = box_distance2_.data() + block;
      for (int64_t i = 0; i < lanes; ++i) out[i] = sum[i] * below_one<T>;
    }
    return box_distance2_.data();
  }

  // Squared distances of one query row to the leaf's particles; null if none is within radius2. Whole blocks are
  // computed, so what lies behind the leaf's last particle is to be left alone, and may be why the answer is not null.
  T* distances(const StagedTree<D, T>& queries, int64_t row, T radius2) {
    T at[D];
    for (int d = 0; d < D; ++d) at[d] = shifted_down(queries.x[d][row], query_shift_[d], query_shift_rest_[d]);
    bool any = pairwise_ ? compute<true>(at, radius2) : compute<false>(at, radius2);
    return any ? distance2_.data() : nullptr;
  }

 private:
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
  bool compute(const T* at, T radius2) {
    int any = 0;
    for (int64_t block = 0; block < count_; block += lanes) {
      T sum[lanes] = {};
      for (int d = 0; d < D; ++d) {
        const T* source = x_[d] + block;
        T here = at[d], period = scale_.period[d], rest = scale_.period_rest[d];
        for (int64_t i = 0; i < lanes; ++i) {
          T difference = Pairwise ? wrapped_difference(here, source[i], period, rest) : here - source[i];
          sum[i] += difference * difference;
        }
      }
      T* out = distance2_.data() + block;
      for (int64_t i = 0; i < lanes; ++i) {
        out[i] = sum[i];
        any |= sum[i] <= radius2;
      }
    }
    return any != 0;
  }

  const Scale<D, T>& scale_;
  std::vector<T> distance2_, box_distance2_, shifted_[D];
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
