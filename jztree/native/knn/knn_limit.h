// Limits of the search: a source is a neighbour only if it is within a given radius of the query, by the rule of
// friends-of-friends (common/distance_rule.h).
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/cpu/leaf_distances.h"
#include "common/distance_rule.h"
#include "knn.h"

namespace jztree {

// From: the dtype of the positions, which may be narrower than T, the type of staged distances.
template <int D, typename T, typename From>
class Limits {
 public:
  Limits(const Neighbours<D, From>& in, const DistanceRule<D, T>& rule) : in_(in), rule_(rule_of_wrapped<From>(rule)) {}

  bool any() const { return in_.limit.count > 0; }

  Within<T> of(int64_t query) const {
    double radius = in_.limit[in_.limit.count > 1 ? in_.queries.row_of(query) : 0];
    Within<T> limit = radius >= 0 ? rule_.within(radius) : Within<T>{};
    // For comparison by "at most".
    limit.surely2 = std::nextafter(limit.surely2, -std::numeric_limits<T>::infinity());
    return limit;
  }

  // Return the near sources that are within the query's limit. `kept` stores their bits.
  Near<T> within(int64_t query, const Within<T>& limit, const Near<T>& near, std::vector<uint64_t>& kept) const {
    kept.assign(near.chosen, near.chosen + near.words);
    for (int64_t w = 0; w < near.words; ++w)
      for (int64_t block = 0; block < Near<T>::word; block += lanes) {
        auto bits = static_cast<uint32_t>(kept[static_cast<size_t>(w)] >> block & 0xffff);
        if (bits == 0) continue;
        int64_t place = w * Near<T>::word + block;
        Lanes<T> distance2;
        load(near.distance2 + place, distance2);
        uint32_t unsure = bits & ~lanes_at_most(distance2, Lanes<T>(limit.surely2));
        if (unsure != 0) kept[static_cast<size_t>(w)] &= ~(outside(query, limit, near.first + place, unsure) << block);
      }
    return {near.distance2, kept.data(), near.words, near.first};
  }

 private:
  // Return the rows from `first` on with a bit in `unsure` that are not within the limit.
  JZTREE_APART uint64_t outside(int64_t query, const Within<T>& limit, int64_t first, uint32_t unsure) const {
    uint64_t bits = 0;
    for (; unsure != 0; unsure &= unsure - 1) {
      int lane = __builtin_ctz(unsure);
      if (!is_within(query, first + lane, limit.exact)) bits |= uint64_t{1} << lane;
    }
    return bits;
  }

  bool is_within(int64_t query, int64_t source, const ExactRadius& radius) const {
    const From *a = in_.queries.pos + query * D, *b = in_.sources.pos + source * D;
    return radius.reaches(D, [&](int d) { return rule_.displacement(static_cast<T>(a[d]), static_cast<T>(b[d]), d); });
  }

  const Neighbours<D, From>& in_;
  const DistanceRule<D, T> rule_;
};

}  // namespace jztree
