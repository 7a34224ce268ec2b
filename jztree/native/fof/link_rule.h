// When two particles are linked: if their distance in float64, from the positions as given, is at most the linking
// length. Distances are computed in the positions' own precision with bounds on their error, and only pairs within
// these bounds are looked at again in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "common/geometry.h"
#include "common/morton.h"
#include "common/portable.h"
#include "common/scale.h"

namespace jztree {

constexpr int fof_dims = 4;

template <int D, typename T>
struct LinkRule {
  T surely2, possibly2;  // scaled squared distances: below the one linked, above the other not
  bool exact_zero;       // staged positions are the given ones, so equal ones are at distance 0
  double factor;         // a power of two for what is squared in float64: 1 for float32, whose squares are in range
  double rlink2, period[D];

  // wrapped: whether any particle was outside its periodic box, so that its staged position is rounded to the box's
  // precision. kept: whether no coordinate has lost digits when it was scaled.
  JZTREE_BOTH LinkRule(double rlink, bool wrapped, bool kept, const Scale<D, T>& scale)
      : exact_zero(!wrapped && kept),
        factor(std::is_same<T, double>::value ? static_cast<double>(scale.factor) : 1.),
        rlink2((rlink * factor) * (rlink * factor)) {
    constexpr double epsilon = std::numeric_limits<T>::epsilon();
    double rounding = 0, length = rlink * static_cast<double>(scale.factor);
    for (int d = 0; d < D; ++d) {
      period[d] = scale.raw_period[d];
      if (period[d] > 0 && wrapped) rounding += 4 * epsilon * static_cast<double>(scale.period[d]);
    }
    double surely = std::max(0., length * (1 - 16 * epsilon) - rounding);
    double possibly = length * (1 + 16 * epsilon) + rounding;
    // Squares that vanish are off by less than the smallest normal number each.
    constexpr T vanishing = D * std::numeric_limits<T>::min();
    surely2 = static_cast<T>(surely * surely) * below_one<T> - vanishing;
    possibly2 = static_cast<T>(possibly * possibly) * above_one<T> + vanishing;
  }

  // Whether the particles at a and b, as given, are linked. distance2: their scaled squared distance, as computed.
  JZTREE_BOTH bool linked(T distance2, const T* a, const T* b) const {
    return distance2 < surely2 || (distance2 <= possibly2 && linked_exactly(a, b));
  }

  // The same for those whose scaled squared distance is from surely2 to possibly2; of others it knows nothing, as
  // positions far outside of a periodic box have lost where in it they are.
  JZTREE_BOTH bool linked_exactly(const T* a, const T* b) const {
    double sum = 0;
    for (int d = 0; d < D; ++d) {
      double difference = nearer(a[d], d) - nearer(b[d], d);
      if (period[d] > 0) difference -= period[d] * std::nearbyint(difference / period[d]);
      difference *= factor;
      sum += difference * difference;
    }
    return sum <= rlink2;
  }

  // A coordinate, moved into the box if it is many periods away, where a difference would lose what it is there.
  JZTREE_BOTH double nearer(double x, int d) const {
    return period[d] > 0 && !is_few_periods(x, period[d]) ? wrap_wide(x, period[d]) : x;
  }

  // Whether all pairs of particles of two boxes are surely linked. True of boxes that lie in such ones: every step is
  // monotonic, rounding too.
  JZTREE_BOTH bool all_linked(const T* alow, const T* ahigh, const T* blow, const T* bhigh,
                              const T* scaled_period) const {
    T sum = 0, reach_sum = 0;
    for (int d = 0; d < D; ++d) {
      T reach = interval_reach(alow[d], ahigh[d], blow[d], bhigh[d], scaled_period[d]);
      sum += reach * reach;
      reach_sum += reach;
    }
    return sum * above_one<T> < surely2 || (exact_zero && reach_sum == 0);
  }
};

}  // namespace jztree
