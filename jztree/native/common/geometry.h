// Distances between boxes, in open and periodic dimensions. All coordinates of a periodic dimension lie in [0, period];
// an open dimension has an infinite period, so that one formula without a branch serves both.
#pragma once

#include <algorithm>
#include <limits>

namespace jztree {

// Smallest distance between [alow, ahigh] and [blow, bhigh] in one dimension: straight, or around the periodic
// boundary.
template <typename T>
inline T interval_gap(T alow, T ahigh, T blow, T bhigh, T period) {
  T straight = std::max(std::max(blow - ahigh, alow - bhigh), T{0});
  T around = std::max(period - (std::max(ahigh, bhigh) - std::min(alow, blow)), T{0});
  return std::min(straight, around);
}

// At least the largest distance between a point of the one and a point of the other interval.
template <typename T>
inline T interval_reach(T alow, T ahigh, T blow, T bhigh, T period) {
  return std::min(std::max(bhigh - alow, ahigh - blow), period / 2);
}

// A squared distance computed from box faces may be rounded above that of a point inside; these factors undo that. The
// rounding is below (2 D + 2) epsilon / 2 for D dimensions.
template <typename T>
constexpr T below_one = T{1} - 16 * std::numeric_limits<T>::epsilon();
template <typename T>
constexpr T above_one = T{1} + 16 * std::numeric_limits<T>::epsilon();

// Which image of a source is the nearest for all pairs of a query box and a leaf box, in one dimension. The shift by a
// period is applied to the coordinate in the upper half of the box, where it loses no digit, so a distance across the
// boundary has the same relative precision as any other.
enum class Image { same, shift_query, shift_source, depends };

template <typename T>
inline Image nearest_image(T qlow, T qhigh, T xlow, T xhigh, T period) {
  T least = qlow - xhigh, most = qhigh - xlow, half = period / 2;
  if (least >= -half && most <= half) return Image::same;
  if (least >= half) return Image::shift_query;
  if (most <= -half) return Image::shift_source;
  return Image::depends;
}

// x moved down by a period that need not be a number of type T: `rest` is what rounding took off it.
template <typename T>
inline T shifted_down(T x, T period, T rest) {
  return (x - period) - rest;
}

// The difference q - x to the nearest image where that has to be decided pair by pair.
template <typename T>
inline T wrapped_difference(T q, T x, T period, T rest) {
  T difference = q - x, half = period / 2;
  T query_shifted = shifted_down(q, period, rest) - x, source_shifted = q - shifted_down(x, period, rest);
  return difference > half ? query_shifted : difference < -half ? source_shifted : difference;
}

}  // namespace jztree
