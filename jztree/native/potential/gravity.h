// The attraction between two particles, softened according to H. C. Plummer (1911, MNRAS 71, 460) or by the spline of
// Gadget (V. Springel, N. Yoshida & S. D. M. White, 2001, New Astronomy 6, 79).
//
// With both softenings, the potential at distance 0 is -m / softening. The spline is exactly Newtonian above 2.8
// softening lengths.
#pragma once

#include <cmath>

#include "common/geometry.h"
#include "common/portable.h"

namespace jztree {

struct Softening {
  double length2 = 0;  // what Plummer's softening adds to squared distances
  double reach = 0;    // the spline is Newtonian at larger distances

  JZTREE_BOTH Softening(double softening, bool spline)
      : length2(spline ? 0 : softening * softening), reach(spline ? 2.8 * softening : 0) {}
};

// 1 / r, 1 / r^3 and 3 / r^5, or what replaces them within the softening. Each is minus the derivative of the one
// before by r, over r. V: a number or a vector.
template <typename V>
struct Attraction {
  V potential, force, bend;
};

template <typename V>
JZTREE_BOTH inline Attraction<V> mean(const V& share, const Attraction<V>& a, const Attraction<V>& b) {
  const V rest = V(1.) - share;
  return {share * a.potential + rest * b.potential, share * a.force + rest * b.force, share * a.bend + rest * b.bend};
}

JZTREE_BOTH inline double square_root(double x) { return std::sqrt(x); }

// 1 / sqrt(x) of a normal positive number.
JZTREE_BOTH inline double inverse_of_root(double x) { return 1 / std::sqrt(x); }
JZTREE_BOTH inline float inverse_of_root(float x) {
#ifdef __CUDA_ARCH__
  return rsqrtf(x);
#else
  return 1 / std::sqrt(x);
#endif
}

// The spline at distances below its reach.
template <typename V>
JZTREE_BOTH inline Attraction<V> spline(const V& r2, double reach) {
  const V scale = V(1 / reach), q2 = r2 * (scale * scale), q = square_root(q2);
  const V inverse = V(1.) / larger<V>(q, V(0.5));
  const V inner = V(2.8) - q2 * (V(16. / 3) + q2 * (V(6.4) * q - V(9.6)));
  const V outer = V(3.2) - V(1. / 15) * inverse - q2 * (V(32. / 3) + q * (V(-16.) + q * (V(9.6) - V(32. / 15) * q)));
  const V inner_force = V(32. / 3) + q2 * (V(32.) * q - V(38.4));
  const V outer_force =
      V(64. / 3) - V(48.) * q + V(38.4) * q2 - V(32. / 3) * q2 * q - V(1. / 15) * inverse * inverse * inverse;
  const V inner_bend = V(76.8) - V(96.) * q, inverse2 = inverse * inverse;
  const V outer_bend = V(48.) * inverse - V(76.8) + V(32.) * q - V(0.2) * inverse2 * inverse2 * inverse;
  const auto inside = q < V(0.5);
  const V scale3 = scale * scale * scale;
  return {choose(inside, inner, outer) * scale, choose(inside, inner_force, outer_force) * scale3,
          choose(inside, inner_bend, outer_bend) * (scale3 * scale * scale)};
}

// Of two particles on a GPU. r2: as for the vectors in gravity_lanes.h.
JZTREE_BOTH inline Attraction<double> softened(double r2, double reach) {
  if (r2 == 0 && reach == 0) return {};
  if (r2 < reach * reach) return spline(r2, reach);
  const double inverse = 1 / std::sqrt(r2), inverse3 = inverse * inverse * inverse;
  return {inverse, inverse3, 3 * inverse3 * inverse * inverse};
}

}  // namespace jztree
