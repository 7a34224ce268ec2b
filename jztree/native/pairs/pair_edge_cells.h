// Finds the edge of each of 16 numbers without comparing them with every edge, for AVX-512.
//
// The bits of a positive number, shifted to the right, are the number of its cell; cells are fractions of a power of
// two. If there is at most one edge near each of 32 or 64 consecutive cells, permutations of registers give the only
// edge that may contain the numbers of a cell, or the next one.
#pragma once

#include "pair_bins.h"

#if defined(__AVX512F__)

namespace jztree {

class EdgeCells {
 public:
  using V = Lanes<float>;

  // Prepare for the edges from `lo` to before `hi` and numbers up to `top`, which have errors up to `slip`. stride: the
  // difference between the places of consecutive edges; origin: the place of edge 0. Returns whether the cells suffice.
  bool set(const EdgeBounds<float>& edges, int64_t lo, int64_t hi, float top, float slip, int32_t stride,
           int32_t origin) {
    stride_ = _mm512_set1_epi32(stride), origin_ = _mm512_set1_epi32(origin);
    // More edges hardly ever fit into 32 cells.
    return (hi - lo <= 12 && set(edges, lo, hi, top, slip, 32)) || set(edges, lo, hi, top, slip, 64);
  }

  // Find the place of the first edge that contains each number. Returns the numbers that are too close to an edge.
  __mmask16 find(const V& x, const V& slip, Lanes<int32_t>& place) const {
    const __m512 number = (__m512)x.part[0], error = (__m512)slip.part[0];
    const __m512i bits = (__m512i)_mm512_maskz_max_ps(every, number, least_);
    const __m512i cell = _mm512_maskz_srlv_epi32(every, bits, shift_);
    __m512 possibly = _mm512_permutex2var_ps(possibly_[0], cell, possibly_[1]);
    __m512 surely = _mm512_permutex2var_ps(surely_[0], cell, surely_[1]);
    __m512i first = _mm512_permutex2var_epi32(place_[0], cell, place_[1]);
    if (cells_ > 32) {
      const __mmask16 upper = _mm512_test_epi32_mask(cell, _mm512_set1_epi32(32));
      possibly = _mm512_mask_mov_ps(possibly, upper, _mm512_permutex2var_ps(possibly_[2], cell, possibly_[3]));
      surely = _mm512_mask_mov_ps(surely, upper, _mm512_permutex2var_ps(surely_[2], cell, surely_[3]));
      first = _mm512_mask_mov_epi32(first, upper, _mm512_permutex2var_epi32(place_[2], cell, place_[3]));
    }
    const __mmask16 beyond = _mm512_cmp_ps_mask(number - error, possibly, _CMP_NLE_UQ);
    const auto places = _mm512_mask_add_epi32(first, beyond, first, stride_);
    place.part[0] = (Lanes<int32_t>::Register)places;
    return _kandn_mask16(beyond, _mm512_cmp_ps_mask(number + error, surely, _CMP_NLE_UQ));
  }

 private:
  static constexpr __mmask16 every = 0xffff;

  static int32_t bits_of(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    return bits;
  }

  bool set(const EdgeBounds<float>& edges, int64_t lo, int64_t hi, float top, float slip, int cells) {
    cells_ = cells;
    // Cell 0 holds all numbers below cell 1, which holds the second edge.
    float second = hi - lo > 1 ? edges.surely[lo + 1] - slip : top;
    top += slip;
    second = std::max(second, top * 0x1p-12f);
    crowded_ = _mm512_set1_ps(top * 0x1p-8f);
    if (!(second > 0 && second <= top && top <= std::numeric_limits<float>::max())) return false;
    const int32_t begin = bits_of(second), end = bits_of(top);
    int shift = 0;
    while ((end >> shift) - (begin >> shift) > cells - 2) ++shift;
    const int32_t base = (begin >> shift) - 1, last = (end >> shift) - base;
    if (base < 0) return false;
    shift_ = _mm512_set1_epi32(shift);
    least_ = (__m512)_mm512_set1_epi32(base << shift);
    bool valid = true;
    for (int part = 0; part < cells / 16; ++part) valid &= fill(part, edges, lo, hi, slip, base, last);
    return valid;
  }

  // Fill a part of the tables. Returns whether each of its cells up to the last one has at most one edge. Among the
  // lowest numbers, which are rare, cells may have several, and all their numbers are too close to an edge.
  bool fill(int part, const EdgeBounds<float>& edges, int64_t lo, int64_t hi, float slip, int32_t base, int last) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    // The entry of a cell is at the remainder of its number.
    const __m512i index = _mm512_add_epi32(lane, _mm512_set1_epi32(16 * part - base));
    const __m512i cell = _mm512_and_si512(index, _mm512_set1_epi32(cells_ - 1));
    const __m512i number = _mm512_add_epi32(cell, _mm512_set1_epi32(base));
    const __mmask16 first = _mm512_cmpeq_epi32_mask(cell, _mm512_setzero_si512());
    const __mmask16 used = _mm512_cmple_epi32_mask(cell, _mm512_set1_epi32(last));
    const __m512 begin = (__m512)_mm512_maskz_sllv_epi32(every, number, shift_);
    const __m512i next_number = _mm512_add_epi32(number, _mm512_set1_epi32(1));
    const __m512 end = (__m512)_mm512_maskz_sllv_epi32(every, next_number, shift_);
    const __m512 infinity = _mm512_set1_ps(std::numeric_limits<float>::infinity());
    __m512 surely = infinity, possibly = infinity, next = infinity;
    __m512i place = _mm512_set1_epi32(static_cast<int>(hi));
    for (int64_t edge = hi - 1; edge >= lo; --edge) {
      const __m512 bound = _mm512_set1_ps(edges.possibly[edge] + slip);
      const __mmask16 reached = first | _mm512_cmp_ps_mask(begin, bound, _CMP_LE_OQ);
      next = _mm512_mask_mov_ps(next, reached, surely);
      surely = _mm512_mask_mov_ps(surely, reached, _mm512_set1_ps(edges.surely[edge]));
      possibly = _mm512_mask_mov_ps(possibly, reached, _mm512_set1_ps(edges.possibly[edge]));
      place = _mm512_mask_mov_epi32(place, reached, _mm512_set1_epi32(static_cast<int>(edge)));
    }
    const __mmask16 several = _mm512_mask_cmp_ps_mask(used, next - _mm512_set1_ps(slip), end, _CMP_NGE_UQ);
    surely_[part] = _mm512_mask_mov_ps(surely, several, _mm512_set1_ps(-infinity[0]));
    possibly_[part] = _mm512_mask_mov_ps(possibly, several, infinity);
    place_[part] = _mm512_add_epi32(_mm512_mullo_epi32(place, stride_), origin_);
    return _mm512_mask_cmp_ps_mask(several, end, crowded_, _CMP_NLE_UQ) == 0;
  }

  int cells_ = 0;
  __m512 least_, crowded_, surely_[4], possibly_[4];
  __m512i shift_, stride_, origin_, place_[4];
};

}  // namespace jztree

#endif
