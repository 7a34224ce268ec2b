// Bounds for pairs with separate lines of sight: the direction from the origin to the middle of each pair.
#pragma once

#include <limits>
#include <type_traits>

#include "common/geometry.h"
#include "pair_bins.h"
#include "sph/kernel_lanes.h"

namespace jztree {

// The pairs of two boxes, or of `lanes` boxes and another.
template <int D, typename V>
struct SightedBoxes {
  V apart[D], sum[D];  // the difference and the sum of their centres
  V radius2;           // the square of half the diagonal of both boxes together
};

// Narrow the bounds of the separations across and along the line of sight. On entry, `across` holds bounds of the
// squared distance. Pairs farther apart than farthest_along along the line of sight do not count.
//
// The separation of any pair differs from that of the centres by at most the radius. The sine of the angle between the
// lines of sight is at most the radius divided by the distance of the sum of the centres from the origin.
template <PairMode Mode, int D, typename T>
inline void bound_sighted(const SightedBoxes<D, Lanes<T>>& boxes, T farthest_along, Lanes<T> (&across)[2],
                          Lanes<T> (&along)[2]) {
  using V = Lanes<T>;
  constexpr bool single = std::is_same<T, float>::value;
  constexpr T epsilon = std::numeric_limits<T>::epsilon(), root = single ? T(0x1p-10) : T(0x1p-24);
  constexpr T representable = single ? T(0x1p60) : T(0x1p500);
  V apart2{}, sum2{}, dot{};
  for (int d = 0; d < D; ++d) {
    apart2 = apart2 + boxes.apart[d] * boxes.apart[d];
    sum2 = sum2 + boxes.sum[d] * boxes.sum[d];
    dot = dot + boxes.apart[d] * boxes.sum[d];
  }
  const V distance = square_root(sum2), radius = square_root(boxes.radius2);
  const V sine = choose(distance < V(representable), radius / distance, V(T{1}));
  const auto narrow = sine < V(T{0.5});
  const V none{}, unknown(std::numeric_limits<T>::max());
  const V longest = square_root(apart2) + radius, reach = square_root(across[1]);
  // The angle is at most 1.05 times a sine below 0.5. The last term is for rounding, of the coordinates too.
  const V off = radius + sine * longest * T(1.1) + (longest + distance) * (64 * epsilon);
  V middle = larger<V>(dot, -dot) / distance;
  along[0] = choose(narrow, larger<V>(middle - off, none), none);
  along[1] = smaller<V>(choose(narrow, middle + off, unknown), reach);
  if (Mode != PairMode::across_along) return;
  // The difference of squares loses half of the digits.
  const V slack = off + longest * (4 * root);
  middle = square_root(larger<V>(apart2 - middle * middle, none));
  V gap = choose(narrow, larger<V>(middle - slack, none), none), most = choose(narrow, middle + slack, reach);
  const V rest = across[0] * below_one<T> - V(farthest_along * farthest_along) * above_one<T>;
  across[0] = larger<V>(gap * gap, rest);
  across[1] = smaller<V>(most * most, across[1]);
}

}  // namespace jztree
