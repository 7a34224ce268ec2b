// Quotients, exponentials and other functions of vectors, lane by lane.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "common/cpu/lanes.h"

namespace jztree {

template <typename T>
inline Lanes<T> divided(const Lanes<T>& a, const Lanes<T>& b) {
  return Lanes<T>::each(a, b, [](const auto& x, const auto& y, auto& out) { out = x / y; });
}
template <typename T>
inline Lanes<T> reciprocal(const Lanes<T>& a) {
  return divided(Lanes<T>(T{1}), a);
}

template <typename T>
inline Lanes<T> magnitude(const Lanes<T>& a) {
  using Bits = typename RegisterType<T>::Mask;
  constexpr auto sign = std::numeric_limits<std::decay_t<decltype(Bits{}[0])>>::min();
  Lanes<T> out;
  Lanes<T>::each_register([&](int i) { out.part[i] = (typename Lanes<T>::Register)((Bits)a.part[i] & ~sign); });
  return out;
}

// The compiler does not turn a comparison and a choice into these instructions.
inline Lanes<float> maximum(const Lanes<float>& a, const Lanes<float>& b) {
#if defined(__AVX512F__)
  Lanes<float> out;
  out.part[0] = (Lanes<float>::Register)_mm512_maskz_max_ps(0xffff, (__m512)a.part[0], (__m512)b.part[0]);
  return out;
#else
  return choose(a > b, a, b);
#endif
}
inline Lanes<float> minimum(const Lanes<float>& a, const Lanes<float>& b) {
#if defined(__AVX512F__)
  Lanes<float> out;
  out.part[0] = (Lanes<float>::Register)_mm512_maskz_min_ps(0xffff, (__m512)a.part[0], (__m512)b.part[0]);
  return out;
#else
  return choose(a < b, a, b);
#endif
}

inline float least_lane(const Lanes<float>& a) {
#if defined(__AVX512F__)
  const __m512d all = (__m512d)a.part[0];
  const __m256 half = _mm256_min_ps((__m256)_mm512_maskz_extractf64x4_pd(0xff, all, 0),
                                    (__m256)_mm512_maskz_extractf64x4_pd(0xff, all, 1));
  __m128 few = _mm_min_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  few = _mm_min_ps(few, _mm_movehl_ps(few, few));
  return std::min(_mm_cvtss_f32(few), _mm_cvtss_f32(_mm_movehdup_ps(few)));
#elif defined(__AVX2__)
  const __m256 half = _mm256_min_ps((__m256)a.part[0], (__m256)a.part[1]);
  __m128 few = _mm_min_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  few = _mm_min_ps(few, _mm_movehl_ps(few, few));
  return std::min(_mm_cvtss_f32(few), _mm_cvtss_f32(_mm_movehdup_ps(few)));
#else
  float all[lanes];
  store(a, all);
  float minimum = all[0];
  for (float value : all) minimum = std::min(minimum, value);
  return minimum;
#endif
}

// a * b + c, rounded once or twice, for numbers whose errors are known to be harmless.
inline Lanes<float> sum_of_product(const Lanes<float>& a, const Lanes<float>& b, const Lanes<float>& c) {
#if defined(__AVX512F__)
  Lanes<float> out;
  out.part[0] = (Lanes<float>::Register)_mm512_fmadd_ps((__m512)a.part[0], (__m512)b.part[0], (__m512)c.part[0]);
  return out;
#elif defined(__FMA__)
  Lanes<float> out;
  Lanes<float>::each_register([&](int i) {
    out.part[i] = (Lanes<float>::Register)_mm256_fmadd_ps((__m256)a.part[i], (__m256)b.part[i], (__m256)c.part[i]);
  });
  return out;
#else
  return a * b + c;
#endif
}

// The nearest integers, for absolute values below 2^22.
inline Lanes<float> nearest_whole(const Lanes<float>& a) {
#if defined(__AVX512F__)
  Lanes<float> out;
  out.part[0] = (Lanes<float>::Register)_mm512_maskz_roundscale_ps(0xffff, (__m512)a.part[0], 0);
  return out;
#else
  const Lanes<float> shift(0x1.8p23f);
  return (a + shift) - shift;
#endif
}

// Without the fraction.
inline Lanes<int32_t> whole_part(const Lanes<float>& a) {
  Lanes<int32_t> out;
  Lanes<float>::each_register(
      [&](int i) { out.part[i] = __builtin_convertvector(a.part[i], Lanes<int32_t>::Register); });
  return out;
}

// One divided by the square root of each lane, to about 2^-21.
inline Lanes<float> inverse_root(const Lanes<float>& a) {
  using Register = Lanes<float>::Register;
  Lanes<float> near;
  Lanes<float>::each_register([&](int i) {
#if defined(__AVX512F__)
    near.part[i] = (Register)_mm512_maskz_rsqrt14_ps(0xffff, (__m512)a.part[i]);
#elif defined(__AVX2__)
    near.part[i] = (Register)_mm256_rsqrt_ps((__m256)a.part[i]);
#elif defined(__SSE2__)
    near.part[i] = (Register)_mm_rsqrt_ps((__m128)a.part[i]);
#else
    register_root(a.part[i], near.part[i]);
    near.part[i] = 1 / near.part[i];
#endif
  });
  // One step of Newton's method doubles the number of exact digits.
  const Lanes<float> half = near * Lanes<float>(0.5f), one(1.f);
  return sum_of_product(half, sum_of_product(a * near, -near, one), near);
}

// exp(x) of non-positive numbers, exact to the last bit or two; 0 below the smallest normal number. With n the integer
// nearest to x / ln 2, exp(x) is 2^n times the series of exp at the remainder, whose absolute value is at most ln(2) /
// 2.
template <typename T>
inline Lanes<T> exponential(const Lanes<T>& x) {
  constexpr bool narrow = std::is_same<T, float>::value;
  using Integer = std::conditional_t<narrow, int32_t, int64_t>;
  typedef Integer Integers __attribute__((vector_size(register_bytes)));
  constexpr int digits = narrow ? 23 : 52, terms = narrow ? 7 : 13;
  // If this is added to a number of modest size, the lowest bits of the sum are the nearest integer.
  constexpr T shift = static_cast<T>(narrow ? 0x1.8p23 : 0x1.8p52);
  // ln 2 in two parts; multiples of the first part are exact.
  constexpr T high = static_cast<T>(narrow ? 0x1.62ep-1 : 0x1.62e42feep-1);
  constexpr T low = static_cast<T>(narrow ? 0x1.0bfbe8p-15 : 0x1.a39ef35793c76p-33);
  constexpr T lower_limit = static_cast<T>(narrow ? -87.3 : -708.3);
  Lanes<T> inside = larger<Lanes<T>>(x, Lanes<T>(lower_limit)),
           shifted = inside * static_cast<T>(0x1.71547652b82fep0) + Lanes<T>(shift);
  Lanes<T> whole = shifted - Lanes<T>(shift), rest = (inside - whole * high) - whole * low;
  Lanes<T> sum(T{1});
  for (int i = terms; i > 0; --i) sum = sum * rest * (T{1} / static_cast<T>(i)) + Lanes<T>(T{1});
  Lanes<T> power;
  Lanes<T>::each_register([&](int i) {
    Integers bits = (Integers)shifted.part[i] << digits;
    Integers one = (Integers)(typename Lanes<T>::Register{} + T{1});
    bits = bits + one;
    std::memcpy(&power.part[i], &bits, register_bytes);
  });
  return choose(x < Lanes<T>(lower_limit), Lanes<T>(), sum * power);
}

// The same numbers in float64.
inline void widen(const Lanes<float>& from, Lanes<double>& to) {
  typedef float Half __attribute__((vector_size(register_bytes / 2)));
  float narrow[lanes];
  store(from, narrow);
  Lanes<double>::each_register([&](int i) {
    Half half;
    std::memcpy(&half, narrow + i * Lanes<double>::width, sizeof(half));
    to.part[i] = __builtin_convertvector(half, Lanes<double>::Register);
  });
}
inline void widen(const Lanes<double>& from, Lanes<double>& to) { to = from; }

// The sum of the lanes, added in the same order for any register size.
inline double sum_of_lanes(const double* x) {
  double sum = 0;
  for (int64_t i = 0; i < lanes; ++i) sum += x[i];
  return sum;
}

}  // namespace jztree
