// Two particles are linked if they are within the linking length of each other.
#pragma once

#include "common/distance_rule.h"

namespace jztree {

constexpr int fof_dims = 4;

template <int D, typename T>
struct LinkRule : DistanceRule<D, T>, Within<T> {
  JZTREE_BOTH LinkRule(double rlink, const DistanceRule<D, T>& rule)
      : DistanceRule<D, T>(rule), Within<T>(this->within(rlink)) {}

  // Whether the particles at input positions a and b are linked. distance2: their computed scaled squared distance.
  JZTREE_BOTH bool linked(T distance2, const T* a, const T* b) const {
    return distance2 < this->surely2 || (distance2 <= this->possibly2 && linked_exactly(a, b));
  }

  // The same for particles whose scaled squared distance is from surely2 to possibly2.
  JZTREE_BOTH bool linked_exactly(const T* a, const T* b) const { return this->is_within_exactly(a, b, this->exact); }

  // Whether all pairs of particles of two boxes are surely linked.
  JZTREE_BOTH bool all_linked(const T* alow, const T* ahigh, const T* blow, const T* bhigh,
                              const T* scaled_period) const {
    return this->all_within(alow, ahigh, blow, bhigh, scaled_period, *this);
  }
};

}  // namespace jztree
