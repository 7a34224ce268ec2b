// Vectors of a fixed number of lanes, made of registers of the instruction set: the compiler turns wider vectors into
// scalar code. (It also unrolls loops over small arrays into scalars.)
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "common/portable.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace jztree {

// Vector loops work on whole blocks of this many elements; arrays are padded so that the last block may be read.
constexpr int64_t lanes = 16;

#if defined(__AVX512F__)
constexpr int register_bytes = 64;
#elif defined(__AVX2__)
constexpr int register_bytes = 32;
#else
constexpr int register_bytes = 16;
#endif

template <typename T>
struct RegisterType {
  typedef T Vector __attribute__((vector_size(register_bytes)));
  typedef decltype(Vector{} < Vector{}) Mask;
};

// N: the number of lanes, `lanes` unless a whole block would be too many.
template <typename T, int64_t N = lanes>
struct Lanes {
  using Register = typename RegisterType<T>::Vector;
  static constexpr int width = register_bytes / static_cast<int>(sizeof(T));
  static constexpr int registers = static_cast<int>(N) / width;

  struct Mask {
    typename RegisterType<T>::Mask part[registers];
  };

  Register part[registers];

  Lanes() = default;  // Lanes{} is zero, and `Lanes x;` is not initialised
  explicit Lanes(T all) {
    each_register([&](int i) { part[i] = Register{} + all; });
  }

  // Call work(i) for each register. This is not a loop, because GCC keeps an array in memory if a loop goes over it,
  // even if the loop is unrolled later.
  template <typename Work>
  JZTREE_INLINE static void each_register(const Work& work) {
    each_of(std::make_integer_sequence<int, registers>{}, work);
  }

  // Compute each register from the registers of a and b.
  template <typename Operation>
  JZTREE_INLINE static Lanes each(const Lanes& a, const Lanes& b, const Operation& operation) {
    Lanes out;
    each_register([&](int i) { operation(a.part[i], b.part[i], out.part[i]); });
    return out;
  }

 private:
  template <typename Work, int... I>
  JZTREE_INLINE static void each_of(std::integer_sequence<int, I...>, const Work& work) {
    (work(I), ...);
  }
};

template <typename T, int64_t N>
inline Lanes<T, N> operator+(const Lanes<T, N>& a, const Lanes<T, N>& b) {
  return Lanes<T, N>::each(a, b, [](const auto& x, const auto& y, auto& out) { out = x + y; });
}
template <typename T, int64_t N>
inline Lanes<T, N> operator-(const Lanes<T, N>& a, const Lanes<T, N>& b) {
  return Lanes<T, N>::each(a, b, [](const auto& x, const auto& y, auto& out) { out = x - y; });
}
template <typename T, int64_t N>
inline Lanes<T, N> operator*(const Lanes<T, N>& a, const Lanes<T, N>& b) {
  return Lanes<T, N>::each(a, b, [](const auto& x, const auto& y, auto& out) { out = x * y; });
}
template <typename T, int64_t N>
inline Lanes<T, N> operator/(const Lanes<T, N>& a, const Lanes<T, N>& b) {
  return Lanes<T, N>::each(a, b, [](const auto& x, const auto& y, auto& out) { out = x / y; });
}
template <typename T, int64_t N>
inline Lanes<T, N> operator*(const Lanes<T, N>& a, T b) {
  return a * Lanes<T, N>(b);
}
template <typename T, int64_t N>
inline Lanes<T, N> operator-(const Lanes<T, N>& a) {
  return Lanes<T, N>() - a;
}
template <typename T, int64_t N>
inline typename Lanes<T, N>::Mask operator<(const Lanes<T, N>& a, const Lanes<T, N>& b) {
  typename Lanes<T, N>::Mask out;
  Lanes<T, N>::each_register([&](int i) { out.part[i] = a.part[i] < b.part[i]; });
  return out;
}
template <typename T, int64_t N>
inline typename Lanes<T, N>::Mask operator>(const Lanes<T, N>& a, const Lanes<T, N>& b) {
  return b < a;
}

template <typename T, int64_t N>
inline typename Lanes<T, N>::Mask operator==(const Lanes<T, N>& a, const Lanes<T, N>& b) {
  typename Lanes<T, N>::Mask out;
  Lanes<T, N>::each_register([&](int i) { out.part[i] = a.part[i] == b.part[i]; });
  return out;
}

// For each lane, `one` if the condition holds, otherwise `other`.
template <typename T, int64_t N>
inline Lanes<T, N> choose(const typename Lanes<T, N>::Mask& condition, const Lanes<T, N>& one,
                          const Lanes<T, N>& other) {
  Lanes<T, N> out;
  Lanes<T, N>::each_register([&](int i) { out.part[i] = condition.part[i] ? one.part[i] : other.part[i]; });
  return out;
}

template <typename T, int64_t N>
inline void load(const T* from, Lanes<T, N>& to) {
  Lanes<T, N>::each_register([&](int i) { std::memcpy(&to.part[i], from + i * Lanes<T, N>::width, register_bytes); });
}

template <typename T, int64_t N>
inline void store(const Lanes<T, N>& from, T* to) {
  Lanes<T, N>::each_register([&](int i) { std::memcpy(to + i * Lanes<T, N>::width, &from.part[i], register_bytes); });
}

// The same for numbers of another precision in memory.
typedef float HalfRegister __attribute__((vector_size(register_bytes / 2)));
inline void widen(const HalfRegister& half, Lanes<double>::Register& to) {
  // GCC splits the conversion of a vector of float32 into several instructions.
#if defined(__AVX512F__)
  to = (Lanes<double>::Register)_mm512_maskz_cvtps_pd(0xff, (__m256)half);
#elif defined(__AVX2__)
  to = (Lanes<double>::Register)_mm256_cvtps_pd((__m128)half);
#else
  to = __builtin_convertvector(half, Lanes<double>::Register);
#endif
}
template <int64_t N>
inline void load(const float* from, Lanes<double, N>& to) {
  Lanes<double, N>::each_register([&](int i) {
    HalfRegister half;
    std::memcpy(&half, from + i * Lanes<double>::width, sizeof(half));
    widen(half, to.part[i]);
  });
}
template <int64_t N>
inline void store(const Lanes<double, N>& from, float* to) {
  Lanes<double, N>::each_register([&](int i) {
    auto half = __builtin_convertvector(from.part[i], HalfRegister);
    std::memcpy(to + i * Lanes<double>::width, &half, sizeof(half));
  });
}
inline void store(const Lanes<float>& from, int32_t* to) {
  Lanes<float>::each_register([&](int i) {
    auto integers = __builtin_convertvector(from.part[i], RegisterType<int32_t>::Vector);
    std::memcpy(to + i * Lanes<float>::width, &integers, sizeof(integers));
  });
}

// Load the number at row(i) of an array into the i-th lane.
template <typename Register, typename T, typename Row, int... Lane>
inline void gather_register(const T* from, const Row& row, Register& to, std::integer_sequence<int, Lane...>) {
  to = Register{from[row(Lane)]...};
}
template <typename T, int64_t N, typename Row>
inline void gather(const T* from, const Row& row, Lanes<double, N>& to) {
  constexpr int width = Lanes<double, N>::width;
  Lanes<double, N>::each_register([&](int i) {
    const auto row_of_lane = [&](int lane) { return row(i * width + lane); };
    constexpr auto all = std::make_integer_sequence<int, width>{};
    if constexpr (sizeof(T) == sizeof(double)) {
      gather_register(from, row_of_lane, to.part[i], all);
    } else {
      HalfRegister half;
      gather_register(from, row_of_lane, half, all);
      widen(half, to.part[i]);
    }
  });
}

// out = the elements of `left`, then of `right`, with these indices. By reference, because passing vectors by value
// differs between instruction sets.
template <typename Register, int... Index>
inline void shuffle(const Register& left, const Register& right, Register& out, std::integer_sequence<int, Index...>) {
#if defined(__clang__) || __GNUC__ >= 12
  out = __builtin_shufflevector(left, right, Index...);
#else
  typedef std::conditional_t<sizeof(left[0]) == 8, int64_t, int32_t> Integer;
  typedef Integer Indices __attribute__((vector_size(sizeof(Register))));
  out = __builtin_shuffle(left, right, Indices{Index...});
#endif
}

// Indices First, First + Step and so on, one for each of the lanes.
template <int First, int Step, int... Lane>
constexpr auto indices(std::integer_sequence<int, Lane...>) {
  return std::integer_sequence<int, (First + Step * Lane)...>{};
}

// out = the last element of `left`, then all but the last element of `right`.
template <typename Register>
inline void shift(const Register& left, const Register& right, Register& out) {
  constexpr int width = sizeof(Register) / sizeof(left[0]);
  shuffle(left, right, out, indices<width - 1, 1>(std::make_integer_sequence<int, width>{}));
}

// out = the second, fourth and so on of the elements of `left`, then of `right`.
template <typename Register>
inline void every_second(const Register& left, const Register& right, Register& out) {
  constexpr int width = sizeof(Register) / sizeof(left[0]);
  shuffle(left, right, out, indices<1, 2>(std::make_integer_sequence<int, width>{}));
}

// 0, 1, 2 and so on.
template <typename T>
inline Lanes<T> places() {
  T all[lanes];
  for (int64_t i = 0; i < lanes; ++i) all[i] = static_cast<T>(i);
  Lanes<T> out;
  load(all, out);
  return out;
}

// The lanes of a register that are at most those of another, the first lane in the lowest bit.
#if defined(__AVX512F__)
inline uint32_t register_at_most(const Lanes<float>::Register& a, const Lanes<float>::Register& b) {
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LE_OQ);
}
inline uint32_t register_at_most(const Lanes<double>::Register& a, const Lanes<double>::Register& b) {
  return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_LE_OQ);
}
#elif defined(__AVX2__)
inline uint32_t register_at_most(const Lanes<float>::Register& a, const Lanes<float>::Register& b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_LE_OQ)));
}
inline uint32_t register_at_most(const Lanes<double>::Register& a, const Lanes<double>::Register& b) {
  return static_cast<uint32_t>(_mm256_movemask_pd(_mm256_cmp_pd((__m256d)a, (__m256d)b, _CMP_LE_OQ)));
}
#elif defined(__SSE2__)
inline uint32_t register_at_most(const Lanes<float>::Register& a, const Lanes<float>::Register& b) {
  return static_cast<uint32_t>(_mm_movemask_ps(_mm_cmple_ps((__m128)a, (__m128)b)));
}
inline uint32_t register_at_most(const Lanes<double>::Register& a, const Lanes<double>::Register& b) {
  return static_cast<uint32_t>(_mm_movemask_pd(_mm_cmple_pd((__m128d)a, (__m128d)b)));
}
#else
template <typename Register>
inline uint32_t register_at_most(const Register& a, const Register& b) {
  uint32_t bits = 0;
  for (unsigned lane = 0; lane < sizeof(Register) / sizeof(a[0]); ++lane)
    bits |= static_cast<uint32_t>(a[lane] <= b[lane]) << lane;
  return bits;
}
#endif

// The same for all lanes.
template <typename T, int64_t N>
inline uint32_t lanes_at_most(const Lanes<T, N>& a, const Lanes<T, N>& b) {
  uint32_t bits = 0;
  Lanes<T, N>::each_register([&](int i) { bits |= register_at_most(a.part[i], b.part[i]) << i * Lanes<T>::width; });
  return bits;
}

// The integer lanes that are below those of another.
inline uint32_t lanes_below(const Lanes<int32_t>& a, const Lanes<int32_t>& b) {
  uint32_t bits = 0;
  Lanes<int32_t>::each_register([&](int i) {
#if defined(__AVX512F__)
    uint32_t below = _mm512_cmplt_epi32_mask((__m512i)a.part[i], (__m512i)b.part[i]);
#elif defined(__AVX2__)
    auto below = static_cast<uint32_t>(_mm256_movemask_ps((__m256)(a.part[i] < b.part[i])));
#elif defined(__SSE2__)
    auto below = static_cast<uint32_t>(_mm_movemask_ps((__m128)(a.part[i] < b.part[i])));
#else
    uint32_t below = 0;
    for (int lane = 0; lane < Lanes<int32_t>::width; ++lane)
      below |= static_cast<uint32_t>(a.part[i][lane] < b.part[i][lane]) << lane;
#endif
    bits |= below << i * Lanes<int32_t>::width;
  });
  return bits;
}

// Intrinsics, because the compiler does not turn a loop over the elements into a single instruction. (The masks avoid a
// warning of GCC 12 about its own header.)
template <typename Register>
inline void register_root(const Register& x, Register& out) {
#if defined(__AVX512F__)
  if constexpr (sizeof(x[0]) == 4) {
    out = (Register)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
  } else {
    out = (Register)_mm512_maskz_sqrt_pd(0xff, (__m512d)x);
  }
#elif defined(__AVX2__)
  if constexpr (sizeof(x[0]) == 4) {
    out = (Register)_mm256_sqrt_ps((__m256)x);
  } else {
    out = (Register)_mm256_sqrt_pd((__m256d)x);
  }
#elif defined(__SSE2__)
  if constexpr (sizeof(x[0]) == 4) {
    out = (Register)_mm_sqrt_ps((__m128)x);
  } else {
    out = (Register)_mm_sqrt_pd((__m128d)x);
  }
#else
  for (unsigned lane = 0; lane < sizeof(Register) / sizeof(x[0]); ++lane) out[lane] = __builtin_sqrt(x[lane]);
#endif
}

// The square root of each lane, rounded according to IEEE 754.
template <typename T, int64_t N>
inline Lanes<T, N> square_root(const Lanes<T, N>& squares) {
  Lanes<T, N> out;
  Lanes<T, N>::each_register([&](int i) { register_root(squares.part[i], out.part[i]); });
  return out;
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// For each choice among eight lanes: the numbers of the chosen lanes in order, one byte each.
struct ChosenLanes {
  uint64_t of[256];
  constexpr ChosenLanes() : of() {
    for (uint64_t chosen = 0; chosen < 256; ++chosen)
      for (uint64_t lane = 0, place = 0; lane < 8; ++lane)
        if (chosen >> lane & 1) of[chosen] |= lane << 8 * place++;
  }
  // The same in a register.
  __m256i in_order(uint32_t chosen) const {
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(of[chosen])));
  }
};
inline constexpr ChosenLanes chosen_lanes;
#endif

// For each set bit of `chosen`, which has `lanes` bits, write `first` plus the position of the bit. Returns the number
// of set bits.
inline int write_chosen(uint32_t chosen, int32_t first, int32_t* to) {
  int count = __builtin_popcount(chosen);
#if defined(__AVX512F__)
  const __m512i place = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512i row = _mm512_add_epi32(place, _mm512_set1_epi32(first));
  __m512i packed = _mm512_maskz_compress_epi32(static_cast<__mmask16>(chosen), row);
  _mm512_mask_storeu_epi32(to, static_cast<__mmask16>((1u << count) - 1), packed);
#else
  for (; chosen != 0; chosen &= chosen - 1) *to++ = first + __builtin_ctz(chosen);
#endif
  return count;
}

// The same if there is space for `lanes` values, with arbitrary values after the last: a store of known length is
// faster than one that depends on a mask.
inline int pack_chosen(uint32_t chosen, int32_t first, int32_t* to) {
#if defined(__AVX512F__)
  const __m512i place = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512i row = _mm512_add_epi32(place, _mm512_set1_epi32(first));
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(static_cast<__mmask16>(chosen), row));
  return __builtin_popcount(chosen);
#elif defined(__AVX2__)
  uint32_t low = chosen & 0xff, high = chosen >> 8;
  int count = __builtin_popcount(low);
  auto pack = [](uint32_t some, int32_t row, int32_t* where) {
    __m256i rows = _mm256_add_epi32(chosen_lanes.in_order(some), _mm256_set1_epi32(row));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(where), rows);
  };
  pack(low, first, to);
  pack(high, first + 8, to + count);
  return count + __builtin_popcount(high);
#else
  return write_chosen(chosen, first, to);
#endif
}

}  // namespace jztree
