// Counts the pairs of a tile whose places are few, for AVX2: each place is a byte, and vectors compare all bytes with
// each of the places. A counter in memory would change once for each pair.
#pragma once

#include <array>
#include <cstdint>

#include "common/cpu/lanes.h"

namespace jztree {

#if defined(__AVX2__) && !defined(__AVX512F__)

class PairBytes {
 public:
  static constexpr int64_t max_rows = lanes;
  // With fewer rows or more places, counters in memory take less time.
  static constexpr int64_t min_rows = lanes / 2, max_places = 16;
  // A byte distinguishes this number of consecutive places.
  static constexpr int64_t span = 254;
  // The numbers of places are multiples of this.
  static constexpr int64_t step = 4;

  // For rows of `count` pairs. Places from `start` to before `start` + `span` count.
  PairBytes(int32_t start, int64_t count) : base_(_mm256_set1_epi32(start - lowest)) {
    Lanes<int32_t> limits, lane = places<int32_t>();
    const auto below = static_cast<int32_t>(count);
    Lanes<int32_t>::each_register(
        [&](int i) { limits.part[i] = start - lowest + (lane.part[i] < below ? -128 : 127); });
    padding_ = packed(limits);
  }

  void add_row(const Lanes<int32_t>& place) { _mm_store_si128(row(rows_++), _mm_max_epi8(packed(place), padding_)); }
  // A vector has two rows.
  void end() { _mm_store_si128(row(rows_), _mm_set1_epi8(127)); }

  // Add the numbers of pairs at `number` places from `start` + `offset` on, rounded up to a multiple of `step`.
  void count(int64_t offset, int64_t number, int64_t* counts) const {
    for (int64_t i = 0; i < number; i += step) count_some(lowest + offset + i, counts + i);
  }

 private:
  static constexpr int lowest = -127;  // -128 and 127 are all places that do not count

  __m128i* row(int64_t i) { return reinterpret_cast<__m128i*>(bytes_.data()) + i; }

  __m128i packed(const Lanes<int32_t>& place) const {
    const __m256i words = _mm256_packs_epi32(_mm256_sub_epi32((__m256i)place.part[0], base_),
                                             _mm256_sub_epi32((__m256i)place.part[1], base_));
    return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  }

  void count_some(int64_t byte, int64_t* counts) const {
    __m256i place[step], count[step];
#pragma GCC unroll 4
    for (int k = 0; k < step; ++k) {
      place[k] = _mm256_set1_epi8(static_cast<char>(byte + k));
      count[k] = _mm256_setzero_si256();
    }
    for (int64_t i = 0; i < rows_; i += 2) {
      const __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes_.data() + i * lanes));
#pragma GCC unroll 4
      for (int k = 0; k < step; ++k) count[k] = _mm256_sub_epi8(count[k], _mm256_cmpeq_epi8(bytes, place[k]));
    }
    // The numbers of the k-th place are in the k-th quarter of each 128 bits.
    const __m256i zero = _mm256_setzero_si256();
    const auto sums = [&](int k) { return _mm256_sad_epu8(count[k], zero); };
    const __m256i even = _mm256_or_si256(sums(0), _mm256_slli_epi64(sums(1), 32));
    const __m256i odd = _mm256_or_si256(sums(2), _mm256_slli_epi64(sums(3), 32));
    const __m256i halves = _mm256_add_epi32(_mm256_unpacklo_epi64(even, odd), _mm256_unpackhi_epi64(even, odd));
    const __m128i all = _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
    __m256i* to = reinterpret_cast<__m256i*>(counts);
    _mm256_storeu_si256(to, _mm256_add_epi64(_mm256_loadu_si256(to), _mm256_cvtepu32_epi64(all)));
  }

  int64_t rows_ = 0;
  __m256i base_;
  __m128i padding_;
  alignas(32) std::array<int8_t, (max_rows + 1) * lanes> bytes_;
};

#endif

}  // namespace jztree
