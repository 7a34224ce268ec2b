// Two particles are linked if they are within the linking length of each other. This is one length for all particles,
// or the mean of the lengths of both particles. Each case has a rule, and both rules have the same functions, so that
// the search is written once, and the search with one length does not read lengths.
//
// In staged units, the linking length of a pair is the sum of two halves, one of each row. The half of a node is the
// largest or the smallest of its rows. With one length, halves are empty.
#pragma once

#include <cstdint>

#include "common/distance_rule.h"
#include "common/scale.h"

namespace jztree {

// The linking lengths, and half of each, scaled. With one length, the pointers are null.
template <typename T>
struct LinkLengths {
  Lengths given;                                              // of each z-ordered row, or one for all
  const T *row = nullptr, *most = nullptr, *least = nullptr;  // [row]; [node]: of its rows

  JZTREE_BOTH bool of_each() const { return given.count != 1; }
};

// One length for all particles.
template <int D, typename T>
struct LinkRule : DistanceRule<D, T>, Within<T> {
  struct Half {};

  JZTREE_BOTH LinkRule(const LinkLengths<T>& lengths, const DistanceRule<D, T>& rule)
      : DistanceRule<D, T>(rule), Within<T>(this->within(lengths.given[0])) {}

  JZTREE_BOTH static Half of_row(int64_t) { return {}; }
  JZTREE_BOTH static Half most_of(int64_t) { return {}; }
  JZTREE_BOTH static Half least_of(int64_t) { return {}; }
  JZTREE_BOTH static Half larger_of(Half, Half) { return {}; }
  // Whether all rows of a node have the same length.
  JZTREE_BOTH static bool is_one_length(int64_t) { return true; }
  // The halves from a row or a node on.
  static const Half* rows_from(int64_t) { return nullptr; }
  static const Half* nodes_from(int64_t) { return nullptr; }

  // Pairs with these halves are not linked above the first scaled squared distance, and surely linked below the second.
  JZTREE_BOTH T possibly_linked2(Half, Half) const { return this->possibly2; }
  JZTREE_BOTH T surely_linked2(Half, Half) const { return this->surely2; }

  // Whether two rows with input positions a and b are linked, if their scaled squared distance is between the two.
  JZTREE_BOTH bool linked_exactly(const T* a, const T* b, int64_t, int64_t) const {
    return this->is_within_exactly(a, b, this->exact);
  }
};

// The mean of two lengths.
template <int D, typename T>
struct MeanLinkRule : DistanceRule<D, T> {
  using Half = T;

  LinkLengths<T> lengths;

  JZTREE_BOTH MeanLinkRule(const LinkLengths<T>& lengths, const DistanceRule<D, T>& rule)
      : DistanceRule<D, T>(rule), lengths(lengths) {}

  JZTREE_BOTH T of_row(int64_t row) const { return lengths.row[row]; }
  JZTREE_BOTH T most_of(int64_t node) const { return lengths.most[node]; }
  JZTREE_BOTH T least_of(int64_t node) const { return lengths.least[node]; }
  JZTREE_BOTH static T larger_of(T a, T b) { return larger<T>(a, b); }
  JZTREE_BOTH bool is_one_length(int64_t node) const { return lengths.least[node] == lengths.most[node]; }
  const T* rows_from(int64_t row) const { return lengths.row + row; }
  const T* nodes_from(int64_t node) const { return lengths.most + node; }

  JZTREE_BOTH T possibly_linked2(T a, T b) const { return possibly_within2<D, T, T>(a + b, *this); }
  JZTREE_BOTH T surely_linked2(T a, T b) const { return surely_within2<D, T>(a + b, *this); }

  JZTREE_BOTH bool linked_exactly(const T* a, const T* b, int64_t row_a, int64_t row_b) const {
    // An infinite sum is right: it is above twice the distance of any two particles.
    return this->is_within_exactly(a, b, ExactRadius((lengths.given[row_a] + lengths.given[row_b]) / 2));
  }

  JZTREE_BOTH static T staged_half(double length, const Scale<D, T>& scale) { return scaled_length(length, scale) / 2; }
};

// Whether two rows with input positions a and b are linked. distance2: their computed scaled squared distance.
template <typename Rule, typename T>
JZTREE_BOTH inline bool are_linked(const Rule& rule, T distance2, const T* a, const T* b, int64_t row_a,
                                   int64_t row_b) {
  const typename Rule::Half half = rule.of_row(row_a), other = rule.of_row(row_b);
  return distance2 < rule.surely_linked2(half, other) ||
         (distance2 <= rule.possibly_linked2(half, other) && rule.linked_exactly(a, b, row_a, row_b));
}

}  // namespace jztree
