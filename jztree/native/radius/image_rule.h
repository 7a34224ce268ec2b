// What a pair of a particle and an image of another is, for both backends.
//
// An image m of a pair is the difference of the two positions less m box lengths. Staged positions are wrapped into the
// box; which image of the positions as given that is follows from the two differences, a whole number of boxes apart.
// What is near a radius is decided in float64 from the positions as given, as the rule of all searches within a radius
// does it (common/distance_rule.h); a difference and its mirror image have the same digits.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "common/distance_rule.h"

namespace jztree {

// A radius of at least 0, for staged positions of which one was shifted by whole boxes: that rounds it in the last
// digit of so many periods, which are at most two more than the radius is long. rule: one that allows for wrapped
// positions.
template <int D, typename T>
JZTREE_BOTH Within<T> image_radius(const DistanceRule<D, T>& rule, double radius, const Scale<D, T>& scale) {
  DistanceRule<D, T> wider = rule;
  double longest = scale.periodic ? radius * static_cast<double>(scale.factor) : 0;
  wider.rounding = 4 * rule.rounding + 8 * D * std::numeric_limits<T>::epsilon() * longest;
  return wider.within(radius);
}

// Images in one dimension, none if the first is behind the last.
struct ImageRange {
  int64_t first, last;
};

// The images of a box of queries, [low, high], that may be within `farthest` of sources in [source_low, source_high].
// All scaled, in float64; period: not open. There are no 2^31 or more, as far as the caller knows.
template <typename T>
JZTREE_BOTH ImageRange images_within(double low, double high, double source_low, double source_high, double period,
                                     double farthest) {
  double reach = farthest / period, slack = 64 * std::numeric_limits<T>::epsilon() * (1 + reach);
  double first = std::ceil((low - source_high) / period - reach - slack),
         last = std::floor((high - source_low) / period + reach + slack);
  if (!(last - first < 0x1p32)) return {0, -1};
  return {static_cast<int64_t>(first), static_cast<int64_t>(last)};
}

// How many box lengths a length is, which is a whole number of them up to rounding. Of most it is none.
JZTREE_BOTH inline double whole_boxes(double length, double period) {
  return std::fabs(length) < period / 2 ? 0 : std::nearbyint(length / period);
}

// One coordinate of an image of two particles at a and b, as given, in float64. inside: the difference of the staged
// ones, unscaled; image: by how many boxes these are shifted.
template <int D, typename T>
JZTREE_BOTH double image_difference(const DistanceRule<D, T>& rule, T a, T b, int d, double inside, int64_t image) {
  const double period = rule.period[d], x = nearer(a, period), y = nearer(b, period), difference = x - y;
  if (!(period > 0)) return difference;
  const double periods = static_cast<double>(image) + whole_boxes(difference - inside, period);
  return less_periods(difference, difference_error(x, y, difference), periods, period);
}

// How many box lengths that is off the difference of the positions as given; 0 where open.
template <typename T>
JZTREE_BOTH int32_t image_shift(T a, T b, double difference, double period) {
  if (!(period > 0)) return 0;
  double given = static_cast<double>(a) - static_cast<double>(b);
  return static_cast<int32_t>(whole_boxes(given - difference, period));
}

}  // namespace jztree
