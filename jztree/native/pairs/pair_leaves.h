// Two leaves whose particles form pairs: copies of their coordinates, moved so that plain differences are those of the
// nearest images if one choice is enough for all pairs. With a line of sight, it is the last dimension.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/cpu/staged_tree.h"
#include "pair_rule.h"

namespace jztree {

// Bounds of the pairs of the particles of `lanes` boxes: lower and upper bounds of both quantities. The second one is
// always a length along the line of sight.
template <typename T>
struct PairBounds {
  T gap[lanes], reach[lanes], gap_along[lanes], reach_along[lanes];
};

// Add the terms of dimension d.
template <PairMode Mode, int D, typename V>
inline void add_dimension(int d, const V& gap, const V& reach, V (&sums)[2], V (&along)[2]) {
  if (Mode != PairMode::across_along || d < D - 1) {
    sums[0] = sums[0] + gap * gap;
    sums[1] = sums[1] + reach * reach;
  }
  if (Mode != PairMode::distance && d == D - 1) along[0] = gap, along[1] = reach;
}

template <PairMode Mode, typename T>
inline void store_bounds(const Lanes<T> (&sums)[2], const Lanes<T> (&along)[2], PairBounds<T>& out) {
  store<T>(sums[0] * below_one<T>, out.gap);
  store<T>(sums[1] * above_one<T>, out.reach);
  if (Mode == PairMode::distance) return;
  store<T>(along[0] * below_one<T>, out.gap_along);
  store<T>(along[1] * above_one<T>, out.reach_along);
}

template <PairMode Mode, int D, typename T>
class PairLeaves {
 public:
  using V = Lanes<T>;

  PairLeaves(const Scale<D, T>& scale, int64_t most) : scale_(scale) {
    size_t room = static_cast<size_t>((most + lanes) / lanes * lanes + lanes);
    for (int d = 0; d < D; ++d) {
      a_[d].resize(room);
      b_[d].resize(room);
      gap_period_[d] = scale.period[d] * below_one<T>;
    }
  }

  const T* gap_period() const { return gap_period_; }
  int64_t count_a() const { return count_a_; }
  int64_t count_b() const { return count_b_; }

  void set(const StagedTree<D, T>& one, int64_t leaf_a, const StagedTree<D, T>& other, int64_t leaf_b) {
    int64_t first_a = one.leaf_row(leaf_a), first_b = other.leaf_row(leaf_b);
    count_a_ = one.leaf_row(leaf_a + 1) - first_a;
    count_b_ = other.leaf_row(leaf_b + 1) - first_b;
    int64_t padded = (count_b_ + lanes - 1) / lanes * lanes;
    T alow[D], ahigh[D];
    for (int d = 0; d < D; ++d) {
      alow[d] = one.low[d][leaf_a], ahigh[d] = one.high[d][leaf_a];
      low_[d] = other.low[d][leaf_b], high_[d] = other.high[d][leaf_b];
      std::copy_n(one.x[d] + first_a, count_a_, a_[d].data());
      std::copy_n(other.x[d] + first_b, count_b_, b_[d].data());
      // Padding is infinitely far away.
      std::fill(b_[d].data() + count_b_, b_[d].data() + padded, std::numeric_limits<T>::infinity());
    }
    pairwise_ = false;
    if (scale_.periodic) choose_images(alow, ahigh);
  }

  // For `lanes` particles of the first leaf, starting at `begin`, to all particles of the second.
  void bounds(int64_t begin, PairBounds<T>& out) const {
    pairwise_ ? bounds_of<true>(begin, out) : bounds_of<false>(begin, out);
  }

  // A particle of the first leaf, and pointers to the coordinates of the second leaf. Loops use a local copy, so that
  // the compiler knows that no write to memory changes it.
  struct Row {
    V at[D], period[D], rest[D];
    const T* b[D];

    // To `lanes` particles of the second leaf, starting at `begin`: the first quantity, and the distance along the line
    // of sight. Infinite for padding.
    template <bool Pairwise>
    void quantities(int64_t begin, V& first, V& along) const {
      first = V{};
      for (int d = 0; d < D; ++d) {
        V x;
        load(b[d] + begin, x);
        add_quantities<Pairwise>(d, at[d], x, period[d], rest[d], first, along);
      }
    }
  };

  template <bool Pairwise>
  Row row(int64_t i) const {
    Row found;
    for (int d = 0; d < D; ++d) {
      found.at[d] = V(a_[d][static_cast<size_t>(i)]);
      found.b[d] = b_[d].data();
      if (Pairwise) found.period[d] = V(scale_.period[d]), found.rest[d] = V(scale_.period_rest[d]);
    }
    return found;
  }

  // The other way round: `lanes` particles of the second leaf, and the coordinates of the first leaf.
  struct Block {
    V x[D], period[D], rest[D];
    const T* a[D];

    // The same from the i-th particle of the first leaf.
    template <bool Pairwise>
    void quantities(int64_t i, V& first, V& along) const {
      first = V{};
      for (int d = 0; d < D; ++d) add_quantities<Pairwise>(d, V(a[d][i]), x[d], period[d], rest[d], first, along);
    }
  };

  template <bool Pairwise>
  Block block(int64_t begin) const {
    Block found;
    for (int d = 0; d < D; ++d) {
      load(b_[d].data() + begin, found.x[d]);
      found.a[d] = a_[d].data();
      if (Pairwise) found.period[d] = V(scale_.period[d]), found.rest[d] = V(scale_.period_rest[d]);
    }
    return found;
  }
  bool pairwise() const { return pairwise_; }

 private:
  // Add the terms of dimension d.
  template <bool Pairwise>
  static void add_quantities(int d, const V& at, const V& x, const V& period, const V& rest, V& first, V& along) {
    V difference = at - x;
    if (Pairwise) difference = wrapped_difference<V>(at, x, period, rest);
    if (Mode != PairMode::across_along || d < D - 1) first = first + difference * difference;
    if (Mode != PairMode::distance && d == D - 1) along = larger<V>(difference, -difference);
  }

  void choose_images(const T* alow, const T* ahigh) {
    Image image[D];
    pairwise_ = !nearest_images<D>(alow, ahigh, low_, high_, scale_.period, image);
    if (pairwise_) return;
    for (int d = 0; d < D; ++d) {
      T period = scale_.period[d], rest = scale_.period_rest[d];
      if (image[d] == Image::shift_query)
        for (int64_t i = 0; i < count_a_; ++i)
          a_[d][static_cast<size_t>(i)] = shifted_down(a_[d][static_cast<size_t>(i)], period, rest);
      if (image[d] != Image::shift_source) continue;
      for (int64_t i = 0; i < count_b_; ++i)
        b_[d][static_cast<size_t>(i)] = shifted_down(b_[d][static_cast<size_t>(i)], period, rest);
      low_[d] = shifted_down(low_[d], period, rest);
      high_[d] = shifted_down(high_[d], period, rest);
    }
  }

  template <bool Pairwise>
  __attribute__((flatten)) void bounds_of(int64_t begin, PairBounds<T>& out) const {
    V sums[2]{}, along[2]{};
    for (int d = 0; d < D; ++d) {
      V x, gap, low(low_[d]), high(high_[d]);
      load(a_[d].data() + begin, x);
      V reach = larger<V>(high - x, x - low);
      if (Pairwise) {
        gap = interval_gap<V>(x, x, low, high, V(gap_period_[d]));
        reach = smaller<V>(reach, V(scale_.period[d] / 2));
      } else {
        gap = larger<V>(larger<V>(low - x, x - high), V{});
      }
      add_dimension<Mode, D, V>(d, gap, reach, sums, along);
    }
    store_bounds<Mode, T>(sums, along, out);
  }

  const Scale<D, T>& scale_;
  std::vector<T> a_[D], b_[D];
  T gap_period_[D];
  T low_[D], high_[D];  // of the second leaf
  int64_t count_a_ = 0, count_b_ = 0;
  bool pairwise_ = false;
};

}  // namespace jztree
