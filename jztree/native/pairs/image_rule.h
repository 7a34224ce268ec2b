// Defines the pairs of a particle and an image of another, for both backends.
//
// Image m of a pair is the difference of the two positions minus m box lengths. Staged positions are wrapped into the
// box, so their difference and that of the input positions are a whole number of box lengths apart. This number
// converts an image of the staged positions to the image of the input positions. Pairs near a radius are decided in
// float64 from the unchanged input positions, like in every search within a radius (common/distance_rule.h). A
// difference and its mirror image have the same digits.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "common/distance_rule.h"

namespace jztree {

// The form of a radius that is at least 0, for a pair of staged positions after one of them was shifted by whole boxes.
// The shift rounds the position in the last digit of the shift, which is at most two periods longer than the radius.
// rule: a rule that allows for wrapped positions.
template <int D, typename T>
JZTREE_BOTH Within<T> image_radius(const DistanceRule<D, T>& rule, double radius, const Scale<D, T>& scale) {
  DistanceRule<D, T> wider = rule;
  double longest = scale.periodic ? radius * static_cast<double>(scale.factor) : 0;
  wider.rounding = 4 * rule.rounding + 8 * D * std::numeric_limits<T>::epsilon() * longest;
  return wider.within(radius);
}

// Images in one dimension; none if `first` is above `last`.
struct ImageRange {
  int64_t first, last;
};

// The images of a box of queries, [low, high], that may be within `max_distance` of sources in [source_low,
// source_high]. All are scaled, in float64; the dimension is periodic. The caller guarantees fewer than 2^31 images.
template <typename T>
JZTREE_BOTH ImageRange images_within(double low, double high, double source_low, double source_high, double period,
                                     double max_distance) {
  double reach = max_distance / period, slack = 64 * std::numeric_limits<T>::epsilon() * (1 + reach);
  double first = std::ceil((low - source_high) / period - reach - slack),
         last = std::floor((high - source_low) / period + reach + slack);
  if (!(last - first < 0x1p32)) return {0, -1};
  return {static_cast<int64_t>(first), static_cast<int64_t>(last)};
}

// Convert a length to a number of box lengths. Up to rounding this is a whole number, usually 0.
JZTREE_BOTH inline double whole_boxes(double length, double period) {
  return std::fabs(length) < period / 2 ? 0 : std::nearbyint(length / period);
}

// One coordinate of an image of two particles at input positions a and b, in float64. inside: the unscaled difference
// of the staged positions; image: the number of boxes by which these are shifted.
template <int D, typename T>
JZTREE_BOTH double image_difference(const DistanceRule<D, T>& rule, T a, T b, int d, double inside, int64_t image) {
  const double period = rule.period[d], x = nearer(a, period), y = nearer(b, period), difference = x - y;
  if (!(period > 0)) return difference;
  const double periods = static_cast<double>(image) + whole_boxes(difference - inside, period);
  return less_periods(difference, difference_error(x, y, difference), periods, period);
}

// The offset of that difference from the difference of the input positions, in box lengths; 0 in open dimensions.
template <typename T>
JZTREE_BOTH int32_t image_shift(T a, T b, double difference, double period) {
  if (!(period > 0)) return 0;
  double input_difference = static_cast<double>(a) - static_cast<double>(b);
  return static_cast<int32_t>(whole_boxes(input_difference - difference, period));
}

}  // namespace jztree
