// Distances between a group of particles and the leaves of a staged hierarchy, in vector loops.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "common/cpu/candidate.h"
#include "common/geometry.h"
#include "node_distances.h"
#include "staged_tree.h"

namespace jztree {

// Particles of a leaf that are near a query.
template <typename T>
struct Near {
  static constexpr int64_t word = 64;  // particles

  const T* distance2;      // of the leaf's particles
  const uint64_t* chosen;  // bits of the near particles in each word, the first in the lowest bit
  int64_t words;
  int64_t first;  // the leaf's first row

  bool any() const {
    uint64_t all = 0;
    for (int64_t w = 0; w < words; ++w) all |= chosen[w];
    return all != 0;
  }

  // Pack the near particles of a word as candidates; `to` has space for `lanes` more. Returns their number.
  int64_t pack(int64_t w, Candidate<T>* to) const {
    int64_t count = 0;
    for (int64_t block = 0; block < word; block += lanes) {
      uint32_t some = chosen[w] >> block & 0xffff;
      if (some == 0) continue;
      int64_t place = w * word + block;
      Lanes<T> blocks_distance2;
      load(distance2 + place, blocks_distance2);
      count += pack_candidates<T>(blocks_distance2, some, static_cast<uint32_t>(first + place + 1), to + count);
    }
    return count;
  }

  // Call visit(row, distance2) for the near particles, in the order of their rows, until it returns false.
  template <typename Visit>
  void each(const Visit& visit) const {
    for (int64_t w = 0; w < words; ++w)
      for (uint64_t left = chosen[w]; left != 0; left &= left - 1) {
        int64_t i = w * word + __builtin_ctzll(left);
        if (!visit(first + i, distance2[i])) return;
      }
  }
};

// The value of `own` for queries that are not sources.
constexpr int64_t no_own = -lanes;

// How to compute the difference of a query and a source.
enum class Difference {
  plain,       // the same image for all pairs
  with_rests,  // the same, plus the rounding errors of wrapped positions (StagedTree::rest)
  pairwise     // to the nearest image of each pair, with rests if there are any
};

// Distances between one leaf of sources and a group of query rows. Rests: whether the trees may have rests.
template <int D, typename T, bool Rests = false>
class LeafDistances {
 public:
  // most: the largest number of particles in a group or a leaf.
  LeafDistances(const Scale<D, T>& scale, int64_t most)
      : scale_(scale),
        distance2_(static_cast<size_t>(lanes * words(most) * Near<T>::word)),
        chosen_(static_cast<size_t>(lanes * words(most))),
        no_rests_(Rests ? static_cast<size_t>(most + lanes) : 0) {
    for (int d = 0; d < D; ++d) {
      shifted_[d].resize(static_cast<size_t>(most + lanes));
      // A distance around the boundary has a rounding error of the last bit of the period. A factor on the gap does not
      // cover this error.
      gap_period_[d] = scale.period[d] * below_one<T>;
    }
  }

  // Periods for lower bounds of distances around the boundary.
  const T* gap_period() const { return gap_period_; }

  // Select this leaf for distances of nearest images. low, high: the box of the query rows.
  void set_leaf(const StagedTree<D, T>& sources, int64_t leaf, const T* low, const T* high) {
    look_at(sources, leaf);
    if (scale_.periodic) choose_images(low, high);
  }

  // The same if the trees may have rests. rounding: the error of box edges. has_rests: whether any query row has a
  // rest.
  void set_leaf(const StagedTree<D, T>& sources, int64_t leaf, const T* low, const T* high, const T* rounding,
                bool has_rests) {
    set_leaf(sources, leaf, low, high);
    const bool any = has_rests || sources.has_rests(leaf);
    if (difference_ == Difference::plain && any) difference_ = Difference::with_rests;
    for (int d = 0; d < D; ++d) {
      rest_[d] = sources.rest[d] ? sources.rest[d] + first_ : no_rests_.data();
      low_[d] -= rounding[d];
      high_[d] += rounding[d];
    }
  }

  // The same for one image: the queries are shifted down, if at all, by `shift` and then by `rest`.
  void set_leaf_of_image(const StagedTree<D, T>& sources, int64_t leaf, bool shifted, const T* shift, const T* rest) {
    look_at(sources, leaf);
    queries_shifted_ = shifted;
    std::copy_n(shift, D, query_shift_);
    std::copy_n(rest, D, query_shift_rest_);
  }

  // Among up to `lanes` query rows from `begin` on, the rows whose squared distance to the leaf's box may be at most
  // radius2; the first row in the lowest bit.
  uint32_t within(const StagedTree<D, T>& queries, int64_t begin, int64_t count, const Lanes<T>& radius2) const {
    uint32_t used = count >= lanes ? 0xffff : (1u << count) - 1;
    return used & (difference_ == Difference::pairwise ? box_within<true>(queries, begin, radius2)
                                                       : box_within<false>(queries, begin, radius2));
  }

  // Find the leaf's particles near query rows. asked: one bit for each of the `lanes` rows from `begin` on, set if the
  // row searches. Near means within the squared radius radius2[i] of the i-th row. The source `own` + i is left out for
  // the i-th row (`no_own`: no source is left out). Returns the rows with near particles, as bits. Until the next call,
  // near(i) returns the particles near the i-th row. enough: the caller needs only this number of nearest particles, or
  // all if it is 0. For an infinite radius, particles that are certainly farther away are then left out.
  uint32_t find_near(const StagedTree<D, T>& queries, int64_t begin, uint32_t asked, const T* radius2, int64_t own,
                     int64_t enough = 0) {
    uint32_t near = 0;
    by_difference(
        [&](auto how) { near = find_all<decltype(how)::value>(queries, begin, asked, radius2, own, enough); });
    return near;
  }

  // Visit the query rows from `begin` on with a bit in `asked`. For the i-th row, this calls see = visit(i). Then it
  // calls see(first, used, distance2) for each block of `lanes` of the leaf's particles: `first` is the index of the
  // block's first particle, `used` has a bit for each particle that exists, and `distance2` holds the squared
  // distances. Finally it calls see.done().
  template <typename Visit>
  void each(const StagedTree<D, T>& queries, int64_t begin, uint32_t asked, const Visit& visit) const {
    by_difference([&](auto how) { each_pair<decltype(how)::value>(queries, begin, asked, visit); });
  }

  // Call visit(row, distance2) for the leaf's particles within the squared radius radius2 of a query row, in the order
  // of their rows, until it returns false.
  template <typename Visit>
  void each_near(const StagedTree<D, T>& queries, int64_t row, T radius2, const Visit& visit) const {
    by_difference([&](auto how) { near_row<decltype(how)::value>(queries, row, radius2, visit); });
  }

  // Call visit(i, j, distance2) for pairs of the leaf's particles, i before j, within the squared radius radius2 of
  // each other, until it returns false. The query rows are those of the leaf.
  template <typename Visit>
  void each_near_pair(T radius2, const Visit& visit) const {
    by_difference([&](auto how) { near_pairs<decltype(how)::value>(radius2, visit); });
  }

  Near<T> near(int64_t i) const {
    return {distance2_.data() + i * words_ * Near<T>::word, chosen_.data() + i * words_, words_, first_};
  }

 private:
  // A query row, shifted so that plain differences to the leaf's particles are those of the nearest images.
  struct Place {
    T at[D], rest[D];
  };

  static int64_t words(int64_t count) { return (count + Near<T>::word - 1) / Near<T>::word; }

  template <typename Work>
  void by_difference(const Work& work) const {
    if (difference_ == Difference::pairwise) {
      work(std::integral_constant<Difference, Difference::pairwise>{});
    } else if (difference_ == Difference::plain) {
      work(std::integral_constant<Difference, Difference::plain>{});
    } else if constexpr (Rests) {
      work(std::integral_constant<Difference, Difference::with_rests>{});
    }
  }

  void look_at(const StagedTree<D, T>& sources, int64_t leaf) {
    first_ = sources.leaf_row(leaf);
    count_ = sources.leaf_row(leaf + 1) - first_;
    words_ = words(count_);
    difference_ = Difference::plain;
    queries_shifted_ = false;
    for (int d = 0; d < D; ++d) {
      x_[d] = sources.x[d] + first_;
      low_[d] = sources.low[d][leaf];
      high_[d] = sources.high[d][leaf];
      query_shift_[d] = query_shift_rest_[d] = 0;
    }
  }

  // Shift queries or sources so that plain differences are those of the nearest images, if one shift is enough for all
  // pairs.
  void choose_images(const T* low, const T* high) {
    Image image[D];
    if (!nearest_images<D>(low, high, low_, high_, scale_.period, image)) {
      difference_ = Difference::pairwise;
      return;
    }
    for (int d = 0; d < D; ++d) {
      T period = scale_.period[d], rest = scale_.period_rest[d];
      if (image[d] == Image::shift_query) {
        query_shift_[d] = period, query_shift_rest_[d] = rest;
        queries_shifted_ = true;
      }
      if (image[d] != Image::shift_source) continue;
      T* shifted = shifted_[d].data();
      for (int64_t i = 0; i < count_ + lanes; ++i) shifted[i] = shifted_down(x_[d][i], period, rest);
      x_[d] = shifted;
      low_[d] = shifted_down(low_[d], period, rest);
      high_[d] = shifted_down(high_[d], period, rest);
    }
  }

  template <bool Pairwise>
  __attribute__((flatten)) uint32_t box_within(const StagedTree<D, T>& queries, int64_t begin,
                                               const Lanes<T>& radius2) const {
    using V = Lanes<T>;
    V sum{};
    for (int d = 0; d < D; ++d) {
      V x, gap, low = V(low_[d]), high = V(high_[d]);
      load(queries.x[d] + begin, x);
      if (Pairwise) {
        gap = interval_gap<V>(x, x, low, high, V(gap_period_[d]));
      } else {
        if (queries_shifted_) x = shifted_down(x, V(query_shift_[d]), V(query_shift_rest_[d]));
        gap = larger<V>(larger<V>(low - x, x - high), V{});
      }
      sum = sum + gap * gap;
    }
    return lanes_at_most(sum * below_one<T>, radius2);
  }

  template <Difference How>
  __attribute__((flatten)) uint32_t find_all(const StagedTree<D, T>& queries, int64_t begin, uint32_t asked,
                                             const T* radius2, int64_t own, int64_t enough) {
    const bool own_here = own + lanes > first_ && own < first_ + count_, some = enough > 0 && enough <= lanes;
    uint32_t rows_with_near = 0;
    for (; asked != 0; asked &= asked - 1) {
      int64_t i = __builtin_ctz(asked), place = own + i - first_;
      T* distance2 = distance2_.data() + i * words_ * Near<T>::word;
      uint64_t* chosen = chosen_.data() + i * words_;
      if (!own_here || place < 0 || place >= count_) place = -1;
      const Place from = place_of(queries, begin + i);
      if (some && radius2[i] == std::numeric_limits<T>::infinity()) {
        choose_nearest<How>(from, place, enough, distance2, chosen);
      } else {
        choose_within<How>(from, radius2[i], distance2, chosen);
      }
      if (place >= 0) chosen[place / Near<T>::word] &= ~(uint64_t{1} << place % Near<T>::word);
      rows_with_near |= static_cast<uint32_t>(near(i).any()) << i;
    }
    return rows_with_near;
  }

  template <Difference How, typename Visit>
  __attribute__((flatten)) void each_pair(const StagedTree<D, T>& queries, int64_t begin, uint32_t asked,
                                          const Visit& visit) const {
    for (; asked != 0; asked &= asked - 1) {
      int64_t i = __builtin_ctz(asked);
      const Place from = place_of(queries, begin + i);
      auto see = visit(i);
      for (int64_t block = 0; block < count_; block += lanes) {
        Lanes<T> sum;
        block_distances<How>(from, block, sum);
        see(block, count_ - block >= lanes ? 0xffffu : (1u << (count_ - block)) - 1, sum);
      }
      see.done();
    }
  }

  template <Difference How, typename Visit>
  __attribute__((flatten)) void near_row(const StagedTree<D, T>& queries, int64_t row, T radius2,
                                         const Visit& visit) const {
    each_near_place<How>(place_of(queries, row), 0, Lanes<T>(radius2),
                         [&](int64_t i, T distance2) { return visit(first_ + i, distance2); });
  }

  template <Difference How, typename Visit>
  __attribute__((flatten)) void near_pairs(T radius2, const Visit& visit) const {
    const Lanes<T> most(radius2);
    for (int64_t i = 0; i + 1 < count_; ++i) {
      Place from;
      for (int d = 0; d < D; ++d) {
        from.at[d] = x_[d][i];
        if constexpr (Rests) from.rest[d] = rest_[d][i];
      }
      auto visit_pair = [&](int64_t j, T distance2) { return visit(i, j, distance2); };
      if (!each_near_place<How>(from, i + 1, most, visit_pair)) return;
    }
  }

  // Visit the leaf's particles from index `first` on. Returns whether all visits returned true. Nothing is stored if no
  // particle is near.
  template <Difference How, typename Visit>
  bool each_near_place(const Place& from, int64_t first, const Lanes<T>& most, const Visit& visit) const {
    for (int64_t block = first / lanes * lanes; block < count_; block += lanes) {
      Lanes<T> sum;
      block_distances<How>(from, block, sum);
      uint32_t near = lanes_at_most(sum, most);
      if (count_ - block < lanes) near &= (1u << (count_ - block)) - 1;
      if (first > block) near &= ~0u << (first - block);
      if (near == 0) continue;
      T distance2[lanes];
      store(sum, distance2);
      for (; near != 0; near &= near - 1)
        if (!visit(block + __builtin_ctz(near), distance2[__builtin_ctz(near)])) return false;
    }
    return true;
  }

  Place place_of(const StagedTree<D, T>& queries, int64_t row) const {
    Place from;
    for (int d = 0; d < D; ++d) {
      from.at[d] = queries.x[d][row];
      if constexpr (Rests) from.rest[d] = queries.rest[d] ? queries.rest[d][row] : T{0};
    }
    if (queries_shifted_)
      for (int d = 0; d < D; ++d) from.at[d] = shifted_down(from.at[d], query_shift_[d], query_shift_rest_[d]);
    return from;
  }

  template <Difference How>
  void choose_within(const Place& from, T radius2, T* distance2, uint64_t* chosen) const {
    const Lanes<T> most(radius2);
    choose_blocks(chosen, [&](int64_t block) {
      Lanes<T> sum;
      block_distances<How>(from, block, sum);
      store(sum, distance2 + block);
      return lanes_at_most(sum, most);
    });
  }

  // Divide the leaf into `enough` or more parts and take the nearest particle of each. These are at least `enough`
  // particles, so the largest of their distances is a bound.
  template <Difference How>
  void choose_nearest(const Place& from, int64_t own, int64_t enough, T* distance2, uint64_t* chosen) const {
    const Lanes<T> nowhere(std::numeric_limits<T>::infinity()), place = places<T>();
    Lanes<T> least = nowhere;
    for (int64_t block = 0; block < count_; block += lanes) {
      Lanes<T> sum;
      block_distances<How>(from, block, sum);
      sum = choose(place == Lanes<T>(static_cast<T>(own - block)), nowhere, sum);
      sum = choose(place < Lanes<T>(static_cast<T>(count_ - block)), sum, nowhere);
      store(sum, distance2 + block);
      least = smaller<Lanes<T>>(sum, least);
    }
    const Lanes<T> most(largest_of_parts(least, enough));
    choose_blocks(chosen, [&](int64_t block) {
      Lanes<T> sum;
      load(distance2 + block, sum);
      return lanes_at_most(sum, most);
    });
  }

  // The largest of the least elements of `enough` or more parts. `least` has one part per lane; pairs of parts are
  // joined while at least `enough` parts remain.
  static T largest_of_parts(const Lanes<T>& least, int64_t enough) {
    static_assert(lanes == 16, "four steps");
    T part[lanes];
    store(least, part);
    join_halves<8>(part, enough);
    join_halves<4>(part, enough);
    join_halves<2>(part, enough);
    join_halves<1>(part, enough);
    return part[0];
  }
  template <int Half>
  static void join_halves(T* part, int64_t enough) {
    if (enough <= Half) {
      for (int i = 0; i < Half; ++i) part[i] = std::min(part[i], part[i + Half]);
    } else {
      for (int i = 0; i < Half; ++i) part[i] = std::max(part[i], part[i + Half]);
    }
  }

  // choose(begin): the near ones among the `lanes` particles from `begin` on.
  template <typename Choose>
  void choose_blocks(uint64_t* chosen, const Choose& choose) const {
    for (int64_t begin = 0; begin < count_; begin += Near<T>::word) {
      int64_t end = std::min(count_, begin + Near<T>::word);
      uint64_t near = 0;
      for (int64_t block = begin; block < end; block += lanes)
        near |= static_cast<uint64_t>(choose(block)) << (block - begin);
      if (end - begin < Near<T>::word) near &= (uint64_t{1} << (end - begin)) - 1;
      *chosen++ = near;
    }
  }

  template <Difference How>
  void block_distances(const Place& from, int64_t block, Lanes<T>& sum) const {
    using V = Lanes<T>;
    constexpr bool with_rests = Rests && How != Difference::plain;
    sum = V{};
    for (int d = 0; d < D; ++d) {
      V x;
      load(x_[d] + block, x);
      V here = V(from.at[d]);
      V difference = here - x;
      if (How == Difference::pairwise)
        difference = wrapped_difference<V>(here, x, V(scale_.period[d]), V(scale_.period_rest[d]));
      if constexpr (with_rests) {
        // The order of operations makes the first sum exact next to a face.
        load(rest_[d] + block, x);
        difference = (difference + V(from.rest[d])) - x;
      }
      sum = sum + difference * difference;
    }
  }

  const Scale<D, T>& scale_;
  std::vector<T> distance2_;      // one query after the other
  std::vector<uint64_t> chosen_;  // the same order
  std::vector<T> no_rests_;       // zeros
  std::vector<T> shifted_[D];
  T gap_period_[D];
  // The current leaf.
  int64_t first_ = 0, count_ = 0, words_ = 0;
  const T *x_[D], *rest_[D] = {};
  T low_[D], high_[D];
  T query_shift_[D], query_shift_rest_[D];
  Difference difference_ = Difference::plain;
  bool queries_shifted_ = false;
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
