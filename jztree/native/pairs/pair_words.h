// Counts the squared distances within each of a few edges, for AVX2: as numbers of 16 bits, which need half the
// registers of float32. Squares nearer to an edge than the resolution are counted again in float32.
//
// With x, x' relative to a point between the leaves, x^2 + x'^2 - 2 x x' is the square. It needs half the operations of
// differences, and its rounding error is relative to x^2 + x'^2.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/cpu/lanes.h"
#include "sph/kernel_lanes.h"

namespace jztree {

#if defined(__AVX2__) && !defined(__AVX512F__)

template <int D>
class PairWords {
 public:
  using V = Lanes<float>;

  static constexpr int max_edges = 4;
  // The number of rows that are counted again together.
  static constexpr int64_t rows_at_once = lanes;
  // With fewer rows, preparing a leaf takes longer than it saves.
  static constexpr int64_t min_rows = 24;

  explicit PairWords(int64_t max_leaf) {
    const size_t room = static_cast<size_t>((max_leaf + lanes) / lanes * lanes);
    for (std::vector<float>* terms : {a_, b_})
      for (int d = 0; d <= D; ++d) terms[d].resize(room);
  }

  // Prepare the squares between two leaves with these coordinates, and the edges, in order. Returns false if numbers of
  // 16 bits cannot represent them.
  bool set(const float* const (&a)[D], int64_t count_a, const float* const (&b)[D], int64_t count_b,
           const float (&middle)[D], const float* surely, const float* possibly, int edges) {
    const double largest = 2 * (double{move(a, count_a, middle, a_)} + double{move(b, count_b, middle, b_)});
    const double low = std::max(double{surely[0]}, 0.), high = double{possibly[edges - 1]};
    const auto origin = static_cast<float>((low + high) / 2);
    const double size = largest + double{origin}, error = 16 * 0x1p-24 * size;
    if (!(size > 0x1p-80 && size < 0x1p125)) return false;
    const auto scale = static_cast<float>(std::min(32000 / ((high - low) / 2 + error), 0x1p28 / size));
    const double slack = error * double{scale} + 1;  // and the rounding to a whole number
    for (int edge = 0; edge < edges; ++edge) {
      const auto steps = [&](float bound) { return (double{bound} - double{origin}) * double{scale}; };
      lower_[edge] = word(std::floor(steps(surely[edge]) - slack));
      upper_[edge] = word(std::ceil(steps(possibly[edge]) + slack));
      outside_[edge] = _mm256_setzero_si256();
    }
    rows_ = 0;
    const V factor(scale), start(origin), minus_two(-2 * scale);
    for (int64_t begin = 0; begin < count_a; begin += lanes) {
      change(a_[D], begin, [&](const V& square) { return (square - start) * factor; });
      for (int d = 0; d < D; ++d) change(a_[d], begin, [&](const V& x) { return x * minus_two; });
    }
    for (int64_t begin = 0; begin < count_b; begin += lanes)
      change(b_[D], begin, [&](const V& square) { return square * factor; });
    // Padding is outside all edges.
    for (int64_t i = count_b; i < (count_b + lanes - 1) / lanes * lanes; ++i) {
      for (int d = 0; d < D; ++d) b_[d].data()[i] = 0;
      b_[D].data()[i] = 0x1p29f;
    }
    return true;
  }

  // Count the squares between at most `rows_at_once` rows of the first leaf and `lanes` rows of the second. Returns
  // false, and counts nothing, if some squares are too near to an edge.
  template <int Edges>
  JZTREE_INLINE bool count(const int32_t* row, const int32_t* end, int64_t begin) {
    const int64_t rows = end - row;
    V terms[D + 1];
#pragma GCC unroll 4
    for (int d = 0; d <= D; ++d) load(b_[d].data() + begin, terms[d]);
    const float* a[D + 1];
    for (int d = 0; d <= D; ++d) a[d] = a_[d].data();
    __m256i outside[Edges], all = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int edge = 0; edge < Edges; ++edge) outside[edge] = _mm256_setzero_si256();
    for (; row < end; ++row) {
      V steps = terms[D] + V(a[D][*row]);
#pragma GCC unroll 4
      for (int d = 0; d < D; ++d) steps = sum_of_product(terms[d], V(a[d][*row]), steps);
      const __m256i words =
          _mm256_packs_epi32(_mm256_cvtps_epi32((__m256)steps.part[0]), _mm256_cvtps_epi32((__m256)steps.part[1]));
#pragma GCC unroll 4
      for (int edge = 0; edge < Edges; ++edge) {
        outside[edge] = _mm256_sub_epi16(outside[edge], _mm256_cmpgt_epi16(words, upper_[edge]));
        all = _mm256_sub_epi16(all, _mm256_cmpgt_epi16(words, lower_[edge]));
      }
    }
#pragma GCC unroll 4
    for (int edge = 0; edge < Edges; ++edge) all = _mm256_sub_epi16(all, outside[edge]);
    if (!_mm256_testz_si256(all, all)) return false;
    rows_ += rows;
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (int edge = 0; edge < Edges; ++edge)
      outside_[edge] = _mm256_add_epi32(outside_[edge], _mm256_madd_epi16(outside[edge], ones));
    return true;
  }

  // The number of counted squares within an edge.
  int64_t within(int edge) const {
    alignas(32) int32_t outside[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(outside), outside_[edge]);
    int64_t sum = rows_ * lanes;
    for (int32_t count : outside) sum -= count;
    return sum;
  }

 private:
  static __m256i word(double steps) {
    constexpr double largest = std::numeric_limits<int16_t>::max();
    return _mm256_set1_epi16(static_cast<int16_t>(std::clamp(steps, -largest - 1, largest - 1)));
  }

  template <typename Change>
  static void change(std::vector<float>& terms, int64_t begin, const Change& changed) {
    V x;
    load(terms.data() + begin, x);
    store<float>(changed(x), terms.data() + begin);
  }

  // Write coordinates relative to a point, and their squares. Returns the largest square.
  static float move(const float* const (&from)[D], int64_t count, const float (&middle)[D],
                    std::vector<float> (&to)[D + 1]) {
    const V place = places<float>();
    V largest{};
    for (int64_t begin = 0; begin < count; begin += lanes) {
      V square{};
      for (int d = 0; d < D; ++d) {
        V x;
        load(from[d] + begin, x);
        x = x - V(middle[d]);
        square = square + x * x;
        store<float>(x, to[d].data() + begin);
      }
      store<float>(square, to[D].data() + begin);
      largest = maximum(largest, choose(place < V(static_cast<float>(count - begin)), square, V{}));
    }
    return -least_lane(V{} - largest);
  }

  std::vector<float> a_[D + 1], b_[D + 1];  // terms of the rows of both leaves
  __m256i lower_[max_edges], upper_[max_edges];
  __m256i outside_[max_edges];  // the numbers of squares outside each edge, and of padding
  int64_t rows_ = 0;            // the number of rows of squares
};

#endif

}  // namespace jztree
