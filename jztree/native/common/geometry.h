// Distances between boxes, in open and periodic dimensions. All coordinates of a periodic dimension are in [0, period];
// an open dimension has an infinite period, so that one formula without a branch serves both.
#pragma once

#include <algorithm>
#include <limits>

#include "portable.h"

namespace jztree {

// For numbers; vectors have their own overload, which works lane by lane.
template <typename T>
JZTREE_BOTH inline T choose(bool condition, const T& one, const T& other) {
  return condition ? one : other;
}

// Of numbers, or lane by lane of vectors.
template <typename V>
JZTREE_BOTH inline V larger(const V& a, const V& b) {
  return choose(a > b, a, b);
}
template <typename V>
JZTREE_BOTH inline V smaller(const V& a, const V& b) {
  return choose(a < b, a, b);
}

// Smallest distance between [alow, ahigh] and [blow, bhigh] in one dimension: straight, or around the periodic
// boundary.
template <typename V>
JZTREE_BOTH inline V interval_gap(const V& alow, const V& ahigh, const V& blow, const V& bhigh, const V& period) {
  V straight = larger<V>(larger<V>(blow - ahigh, alow - bhigh), V{});
  V around = larger<V>(period - (larger<V>(ahigh, bhigh) - smaller<V>(alow, blow)), V{});
  return smaller<V>(straight, around);
}

// An upper limit of the distances from points of [alow, ahigh] to [blow, bhigh], each defined as above; rounding keeps
// the order.
template <typename V>
JZTREE_BOTH inline V widest_gap(const V& alow, const V& ahigh, const V& blow, const V& bhigh, const V& period) {
  V straight = larger<V>(larger<V>(blow - alow, ahigh - bhigh), V{});
  V around = larger<V>(period - (larger<V>(alow, bhigh) - smaller<V>(ahigh, blow)), V{});
  return smaller<V>(straight, around);
}

// An upper limit of the distances between points of the two intervals.
template <typename T>
JZTREE_BOTH inline T interval_reach(T alow, T ahigh, T blow, T bhigh, T period) {
  return std::min(std::max(bhigh - alow, ahigh - blow), period / 2);
}

// A squared distance computed from box faces may be rounded above that of a point inside; these factors undo that. The
// rounding is below (2 D + 2) epsilon / 2 for D dimensions.
template <typename T>
constexpr T below_one = T{1} - 16 * std::numeric_limits<T>::epsilon();
template <typename T>
constexpr T above_one = T{1} + 16 * std::numeric_limits<T>::epsilon();

// The image of a source that is the nearest for all pairs of a query box and a leaf box, in one dimension. The shift by
// a period is applied to the coordinate in the upper half of the box, because it loses no digit there. So a distance
// across the boundary has the same relative precision as any other.
enum class Image { same, shift_query, shift_source, depends };

template <typename T>
JZTREE_BOTH inline Image nearest_image(T qlow, T qhigh, T xlow, T xhigh, T period) {
  T least = qlow - xhigh, most = qhigh - xlow, half = period / 2;
  if (least >= -half && most <= half) return Image::same;
  if (least >= half) return Image::shift_query;
  if (most <= -half) return Image::shift_source;
  return Image::depends;
}

// The same in all dimensions. Returns false if the image depends on the pair in any dimension.
template <int D, typename T>
JZTREE_BOTH inline bool nearest_images(const T* qlow, const T* qhigh, const T* xlow, const T* xhigh, const T* period,
                                       Image* image) {
  bool one_for_all = true;
  for (int d = 0; d < D; ++d) {
    image[d] = nearest_image(qlow[d], qhigh[d], xlow[d], xhigh[d], period[d]);
    one_for_all &= image[d] != Image::depends;
  }
  return one_for_all;
}

// Whether plain differences may differ from those of the nearest images for some pair of the two boxes.
template <int D, typename T>
JZTREE_BOTH inline bool wraps_around(const T* alow, const T* ahigh, const T* blow, const T* bhigh, const T* period) {
  bool around = false;
  for (int d = 0; d < D; ++d) around |= nearest_image(alow[d], ahigh[d], blow[d], bhigh[d], period[d]) != Image::same;
  return around;
}

// x moved down by a period that T may not represent exactly: `rest` is its rounding error.
template <typename V>
JZTREE_BOTH inline V shifted_down(const V& x, const V& period, const V& rest) {
  return (x - period) - rest;
}

// The difference q - x to the nearest image, decided for this pair.
template <typename V>
JZTREE_BOTH inline V wrapped_difference(const V& q, const V& x, const V& period, const V& rest) {
  V difference = q - x, half = period * V(0.5f);
  V query_shifted = shifted_down<V>(q, period, rest) - x, source_shifted = q - shifted_down<V>(x, period, rest);
  V upper = choose(difference > half, query_shifted, difference);
  return choose(difference < -half, source_shifted, upper);
}

}  // namespace jztree
