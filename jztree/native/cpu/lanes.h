// Vectors of a fixed number of lanes, by the vector extension that GCC and Clang share on all machines. The compiler
// maps them to the registers there are. (Loops over small arrays of the same length are unrolled into scalars instead.)
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace jztree {

// Vector loops work on whole blocks of this many elements; arrays are padded so that the last block may be read.
constexpr int64_t lanes = 16;

template <typename T>
struct LaneTypes {
  typedef T Vector __attribute__((vector_size(lanes * sizeof(T))));
};

template <typename T>
using Lanes = typename LaneTypes<T>::Vector;

template <typename T>
inline void load(const T* from, Lanes<T>& to) {
  std::memcpy(&to, from, sizeof(to));
}

template <typename T>
inline void store(const Lanes<T>& from, T* to) {
  std::memcpy(to, &from, sizeof(from));
}

// Which lanes of a are at most those of b, the first lane in the lowest bit.
template <typename T>
inline uint32_t lanes_at_most(const Lanes<T>& a, const Lanes<T>& b) {
  uint32_t bits = 0;
#if defined(__AVX512F__)
  constexpr int width = 64 / sizeof(T);
  for (int first = 0; first < lanes; first += width) {
    __m512 x, y;
    std::memcpy(&x, reinterpret_cast<const T*>(&a) + first, sizeof(x));
    std::memcpy(&y, reinterpret_cast<const T*>(&b) + first, sizeof(y));
    uint32_t part = sizeof(T) == 4 ? _mm512_cmp_ps_mask(x, y, _CMP_LE_OQ)
                                   : _mm512_cmp_pd_mask(_mm512_castps_pd(x), _mm512_castps_pd(y), _CMP_LE_OQ);
    bits |= part << first;
  }
#elif defined(__AVX2__)
  constexpr int width = 32 / sizeof(T);
  for (int first = 0; first < lanes; first += width) {
    __m256 x, y;
    std::memcpy(&x, reinterpret_cast<const T*>(&a) + first, sizeof(x));
    std::memcpy(&y, reinterpret_cast<const T*>(&b) + first, sizeof(y));
    int part = sizeof(T) == 4 ? _mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_LE_OQ))
                              : _mm256_movemask_pd(_mm256_cmp_pd(_mm256_castps_pd(x), _mm256_castps_pd(y), _CMP_LE_OQ));
    bits |= static_cast<uint32_t>(part) << first;
  }
#else
  T x[lanes], y[lanes];
  store<T>(a, x);
  store<T>(b, y);
  for (int i = 0; i < lanes; ++i) bits |= static_cast<uint32_t>(x[i] <= y[i]) << i;
#endif
  return bits;
}

}  // namespace jztree
