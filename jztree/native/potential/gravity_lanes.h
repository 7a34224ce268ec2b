// The attraction (gravity.h) of vectors of particles.
#pragma once

#include <algorithm>

#include "common/cpu/lanes.h"
#include "gravity.h"

namespace jztree {

// As many targets as stay in registers together with their sums.
template <typename Real>
constexpr int64_t targets = std::min<int64_t>(lanes, 2 * Lanes<Real>::width);
template <typename Real>
using Targets = Lanes<Real, targets<Real>>;

// 1 / sqrt(x) of normal positive numbers. For float32, a first guess comes from the bits, and steps of Newton's method
// improve it to 1e-6: this is faster than a root and a quotient, and unlike approximate instructions, it gives the same
// bits on every machine (C. J. Walczyk, L. V. Moroz & J. L. Cieslinski, 2021, Entropy 23, 86).
template <int64_t N>
inline Lanes<float, N> inverse_of_root(const Lanes<float, N>& x) {
  using V = Lanes<float, N>;
  using Bits = RegisterType<int32_t>::Vector;
  V y;
  V::each_register([&](int i) { y.part[i] = (typename V::Register)(0x5f1ffff9 - ((Bits)x.part[i] >> 1)); });
  y = y * (V(1.681913952f) - x * y * y * 0.703952253f);
  return y * (V(1.5000004f) - x * 0.5f * y * y);
}
template <int64_t N>
inline Lanes<double, N> inverse_of_root(const Lanes<double, N>& x) {
  return Lanes<double, N>(1.) / square_root(x);
}

// With all softenings, and 0 at distance 0 without softening. r2: squared distances plus Plummer's squared softening.
JZTREE_INLINE inline Attraction<Lanes<double>> softened(const Lanes<double>& r2, double reach) {
  using V = Lanes<double>;
  const auto separate = V{} < r2;
  const V inverse = choose(separate, inverse_of_root(choose(separate, r2, V(1.))), V{});
  const V inverse3 = inverse * inverse * inverse;
  const Attraction<V> newton{inverse, inverse3, V(3.) * inverse3 * inverse * inverse};
  if (!(reach > 0) || lanes_at_most(r2, V(reach * reach)) == 0) return newton;
  const Attraction<V> soft = spline(r2, reach);
  const auto within = r2 < V(reach * reach);
  return {choose(within, soft.potential, newton.potential), choose(within, soft.force, newton.force),
          choose(within, soft.bend, newton.bend)};
}

}  // namespace jztree
