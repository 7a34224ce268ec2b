// Counts the pairs of a tile whose places are few, for AVX2: the places are packed into bytes, and all bytes are
// compared with each place. A counter in memory would change once for each pair.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "common/cpu/lanes.h"

namespace jztree {

#if defined(__AVX2__) && !defined(__AVX512F__)

class FewPlaces {
 public:
  static constexpr int64_t max_rows = lanes, min_rows = lanes / 2;
  // With more places, counters in memory take less time. On a two-core AMD EPYC 9005 (Zen 5), 20 x 40 bins of a
  // clustered box take a tenth less time than without this file.
  static constexpr int64_t capacity = 32;
  // A byte distinguishes this number of consecutive places.
  static constexpr int64_t span = 254;

  // The numbers of places are multiples of this.
  static constexpr int64_t step = 4;

  // All bits of the first `number` of the lanes, and none of the others.
  static Lanes<int32_t> first_lanes(int64_t number) {
    Lanes<int32_t> out, lane = jztree::places<int32_t>();
    Lanes<int32_t>::each_register(
        [&](int i) { out.part[i] = (Lanes<int32_t>::Register)(lane.part[i] < static_cast<int32_t>(number)); });
    return out;
  }

  // For the places of `lanes` pairs per row.
  int32_t* begin() { return places_.data(); }

  // Pack the places before `end`. Only places from `start` to before `start` + `span` can be counted. Place 0 is below.
  void pack(const int32_t* end, int32_t start) {
    std::fill(places_.data() + (end - places_.data()), places_.data() + places_.size(), 0);
    for (size_t i = 0; i < bytes_.size(); i += register_bytes)
      pack_register(places_.data() + i, start + 127, &bytes_[i]);
  }

  // Add the numbers of pairs at `number` places from `start` + `offset` on.
  void add(int64_t offset, int64_t number, int64_t* counts) const {
    for (int64_t i = 0; i < number; i += step) add_some(offset + i - 127, counts + i);
  }

 private:
  static void pack_register(const int32_t* places, int32_t middle, int8_t* to) {
    const __m256i base = _mm256_set1_epi32(middle);
    const auto part = [&](int i) {
      return _mm256_sub_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(places + 8 * i)), base);
    };
    const __m256i low = _mm256_packs_epi32(part(0), part(1)), high = _mm256_packs_epi32(part(2), part(3));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_packs_epi16(low, high));
  }

  void add_some(int64_t byte, int64_t* counts) const {
    __m256i place[step], count[step];
#pragma GCC unroll 4
    for (int k = 0; k < step; ++k) {
      place[k] = _mm256_set1_epi8(static_cast<char>(byte + k));
      count[k] = _mm256_setzero_si256();
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < bytes_.size(); i += register_bytes) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(&bytes_[i]));
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

  std::array<int32_t, max_rows * lanes> places_{};
  std::array<int8_t, max_rows * lanes> bytes_{};
};

#endif

}  // namespace jztree
