// Kernels W(r, h) = norm h^-D w(r / h), which are 0 for r > h, and the terms of their derivatives:
//
//   g0 = w,  g1 = w' / q,  g2 = q (w' / q)',  at q = r / h.
//
// With u = x / h, each D-th part by components of x costs one more power of 1 / h, and
//   W = g0,  dW = g1 u,  ddW = g1 delta + g2 u u / q^2,
// and, because each is homogeneous in x and h,
//   h d/dh W = -(D g0 + q^2 g1),            h^2 d2/dh2 W = D (D + 1) g0 + q^2 ((2 D + 3) g1 + g2),
//   h d/dh (g1 u) = -((D + 2) g1 + g2) u.
// All terms are finite at q = 0.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/arguments.h"
#include "common/geometry.h"
#include "common/portable.h"

namespace jztree {

// Number of values that describe a kernel: its norm, the rate of a Gaussian exp(-rate q^2), and for each g a power and
// the coefficients of (1 - q)^power (c0 + c1 q + ...).
constexpr int profile_terms = 5;
constexpr int profile_numbers = 2 + 3 * (1 + profile_terms);

JZTREE_BOTH inline float reciprocal(float x) { return 1 / x; }
JZTREE_BOTH inline double reciprocal(double x) { return 1 / x; }
JZTREE_BOTH inline float exponential(float x) { return std::exp(x); }
JZTREE_BOTH inline double exponential(double x) { return std::exp(x); }

enum class KernelShape : int { top_hat, gaussian, cubic_spline, polynomial };

template <typename T>
struct KernelProfile {
  KernelShape shape;
  double norm;
  T rate;
  int power[3];
  T coefficient[3][profile_terms];

  JZTREE_BOTH KernelProfile(int64_t shape_number, const Lengths& numbers)
      : shape(static_cast<KernelShape>(shape_number)), norm(numbers[0]), rate(static_cast<T>(numbers[1])) {
    for (int g = 0; g < 3; ++g) {
      int64_t first = 2 + g * (1 + profile_terms);
      power[g] = static_cast<int>(numbers[first]);
      for (int i = 0; i < profile_terms; ++i) coefficient[g][i] = static_cast<T>(numbers[first + 1 + i]);
    }
  }

  // Whether it is not 0 at its end, so that it matters whether a source is inside or outside h.
  JZTREE_BOTH bool jumps() const { return shape == KernelShape::top_hat || shape == KernelShape::gaussian; }

  // g0, g1 or g2, for q from 0 to 1. V: a number or a vector.
  template <int G, typename V>
  JZTREE_BOTH V part(const V& q, const V& q2) const {
    switch (shape) {
      case KernelShape::top_hat: return V(T{G == 0});
      case KernelShape::gaussian: return gaussian<G>(q2);
      case KernelShape::cubic_spline: return spline<G>(q, q2);
      default: return polynomial(G, q);
    }
  }

 private:
  template <int G, typename V>
  JZTREE_BOTH V gaussian(const V& q2) const {
    V w = exponential(q2 * V(-rate));
    if (G == 0) return w;
    if (G == 1) return w * V(-2 * rate);
    return w * q2 * V(4 * rate * rate);
  }

  // 1 - 6 q^2 + 6 q^3 up to 1/2, and 2 (1 - q)^3 from there on.
  template <int G, typename V>
  JZTREE_BOTH V spline(const V& q, const V& q2) const {
    V half = V(T{0.5}), rest = V(T{1}) - q, inner, outer;
    V inverse = reciprocal(larger<V>(q, half));
    if (G == 0) {
      inner = V(T{1}) - q2 * V(T{6}) * rest;
      outer = rest * rest * rest * V(T{2});
    } else if (G == 1) {
      inner = q * V(T{18}) - V(T{12});
      outer = rest * rest * inverse * V(T{-6});
    } else {
      inner = q * V(T{18});
      outer = rest * (V(T{1}) + q) * inverse * V(T{6});
    }
    return choose(q < half, inner, outer);
  }

  template <typename V>
  JZTREE_BOTH V polynomial(int g, const V& q) const {
    V sum = V(coefficient[g][profile_terms - 1]), rest = V(T{1}) - q;
    for (int i = profile_terms - 2; i >= 0; --i) sum = sum * q + V(coefficient[g][i]);
    for (int i = 0; i < power[g]; ++i) sum = sum * rest;
    return sum;
  }
};

// The combination of g0, g1 and g2 for W differentiated `order` times by x and `by_h` times by h.
template <typename T>
struct RadialSum {
  T c0 = 0, c1 = 0, c2 = 0;

  JZTREE_BOTH RadialSum(int dims, int order, int by_h) {
    T d = static_cast<T>(dims);
    if (order == 0) {
      c0 = by_h == 0 ? 1 : by_h == 1 ? -d : d * (d + 1);
      c1 = by_h == 0 ? 0 : by_h == 1 ? -1 : 2 * d + 3;
      c2 = by_h == 2 ? 1 : 0;
    } else if (order == 1) {
      c1 = by_h == 0 ? 1 : -(d + 2);
      c2 = by_h == 0 ? 0 : -1;
    }
  }

  // For order 0; for order 1, the factor of u.
  template <int Order, typename V>
  JZTREE_BOTH V operator()(const KernelProfile<T>& kernel, const V& q, const V& q2) const {
    V sum{};
    if (c1 != 0) sum = kernel.template part<1>(q, q2) * V(c1);
    if (c2 != 0) sum = sum + kernel.template part<2>(q, q2) * V(c2);
    if (Order > 0) return sum;
    return kernel.template part<0>(q, q2) * V(c0) + q2 * sum;
  }
};

}  // namespace jztree
