// Candidates for neighbours.
//
// A candidate is a single integer, with its squared distance in the high bits and its row in the low bits. One
// comparison orders by distance and then by row, because the bits of non-negative floats sort like the floats. The
// stored row is the row plus one, or zero for a query that is its own neighbour, so that it precedes others at the same
// place.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "lanes.h"

namespace jztree {

__extension__ typedef __int128 int128;

template <typename T>
struct CandidateTraits;
template <>
struct CandidateTraits<float> {
  using Key = int64_t;
  using Bits = int32_t;
};
template <>
struct CandidateTraits<double> {
  using Key = int128;
  using Bits = int64_t;
};

template <typename T>
using Candidate = typename CandidateTraits<T>::Key;

template <typename T>
inline Candidate<T> make_candidate(T distance2, uint32_t row_plus_one) {
  typename CandidateTraits<T>::Bits bits;
  std::memcpy(&bits, &distance2, sizeof(bits));
  // Multiplied instead of shifted, because a bound may be negative.
  return (bits * (Candidate<T>{1} << 32)) | row_plus_one;
}

template <typename T>
inline T candidate_distance2(Candidate<T> candidate) {
  auto bits = static_cast<typename CandidateTraits<T>::Bits>(candidate >> 32);
  T distance2;
  std::memcpy(&distance2, &bits, sizeof(bits));
  return distance2;
}

template <typename T>
inline uint32_t candidate_row_plus_one(Candidate<T> candidate) {
  return static_cast<uint32_t>(candidate & 0xffffffff);
}

// Represents a neighbour not found yet: farther than any other.
constexpr uint32_t no_row = 0xffffffff;
template <typename T>
inline Candidate<T> no_candidate() {
  return make_candidate<T>(std::numeric_limits<T>::infinity(), no_row);
}

// Represents a query that is its own neighbour.
template <typename T>
inline Candidate<T> own_candidate() {
  return make_candidate<T>(0, 0);
}

// Load the squared distances of candidates, which are in the second half of each.
inline void load_distances(const Candidate<float>* from, Lanes<float>& to) {
  Lanes<float>::each_register([&](int i) {
    Lanes<float>::Register first, second;
    std::memcpy(&first, from + i * Lanes<float>::width, sizeof(first));
    std::memcpy(&second, from + i * Lanes<float>::width + Lanes<float>::width / 2, sizeof(second));
    every_second(first, second, to.part[i]);
  });
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// Pack the chosen lanes of a register of eight lanes.
inline int64_t pack_register(const Lanes<float>::Register& distance2, uint32_t chosen, uint32_t row_plus_one,
                             int64_t* to) {
  __m256i order = chosen_lanes.in_order(chosen);
  __m256i bits = _mm256_permutevar8x32_epi32((__m256i)distance2, order);
  __m256i rows = _mm256_add_epi32(order, _mm256_set1_epi32(static_cast<int>(row_plus_one)));
  // The first two and the last two lanes of each half of the register.
  __m256i first = _mm256_unpacklo_epi32(rows, bits), last = _mm256_unpackhi_epi32(rows, bits);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute2x128_si256(first, last, 0x20));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 4), _mm256_permute2x128_si256(first, last, 0x31));
  return __builtin_popcount(chosen);
}
#endif

// Pack the chosen lanes as candidates; the first lane has the row `row_plus_one`. `to` has space for all lanes. Returns
// their number.
template <typename T>
inline int64_t pack_candidates(const Lanes<T>& distance2, uint32_t chosen, uint32_t row_plus_one, Candidate<T>* to) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    const __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    __mmask16 mask = static_cast<__mmask16>(chosen);
    __m512i bits, rows = _mm512_add_epi32(order, _mm512_set1_epi32(static_cast<int>(row_plus_one)));
    std::memcpy(&bits, &distance2.part[0], sizeof(bits));
    bits = _mm512_maskz_compress_epi32(mask, bits);
    rows = _mm512_maskz_compress_epi32(mask, rows);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi32(rows, first, bits));
    _mm512_storeu_si512(to + 8, _mm512_permutex2var_epi32(rows, second, bits));
    return __builtin_popcount(chosen);
  }
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4) {
    int64_t count = pack_register(distance2.part[0], chosen & 0xff, row_plus_one, to);
    return count + pack_register(distance2.part[1], chosen >> 8, row_plus_one + 8, to + count);
  }
#endif
  T values[lanes];
  store<T>(distance2, values);
  int64_t count = 0;
  for (; chosen != 0; chosen &= chosen - 1) {
    int lane = __builtin_ctz(chosen);
    to[count++] = make_candidate<T>(values[lane], row_plus_one + static_cast<uint32_t>(lane));
  }
  return count;
}

// Move the candidates that are at most `bound` to the front, in their order. Returns their number.
template <typename Key>
inline int64_t keep_at_most(Key* candidates, int64_t count, Key bound) {
  Key* kept = candidates;
  int64_t i = 0;
#if defined(__AVX512F__)
  if constexpr (sizeof(Key) == 8)
    for (; i + 8 <= count; i += 8) {
      __m512i keys = _mm512_loadu_si512(candidates + i);
      __mmask8 mask = _mm512_cmple_epi64_mask(keys, _mm512_set1_epi64(bound));
      _mm512_storeu_si512(kept, _mm512_maskz_compress_epi64(mask, keys));
      kept += __builtin_popcount(mask);
    }
#elif defined(__AVX2__)
  if constexpr (sizeof(Key) == 8)
    for (; i + 4 <= count; i += 4) {
      __m256i keys = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(candidates + i));
      __m256i beyond = _mm256_cmpgt_epi64(keys, _mm256_set1_epi64x(bound));
      // Two bits for each candidate.
      uint32_t mask = ~static_cast<uint32_t>(_mm256_movemask_ps((__m256)beyond)) & 0xff;
      keys = _mm256_permutevar8x32_epi32(keys, chosen_lanes.in_order(mask));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(kept), keys);
      kept += __builtin_popcount(mask) / 2;
    }
#endif
  for (; i < count; ++i) {
    Key candidate = candidates[i];
    *kept = candidate;
    kept += candidate <= bound;
  }
  return kept - candidates;
}

}  // namespace jztree
