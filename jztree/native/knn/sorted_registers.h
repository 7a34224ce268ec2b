// A short sorted list of integers in vector registers, with insertion.
#pragma once

#include <cstdint>

#include "common/cpu/lanes.h"

namespace jztree {

// Inserting x makes each element the minimum of itself and the maximum of x and the previous element: two vector
// instructions per register, and no branch. Neighbours in the list are in the same lane of successive registers; after
// the last register, the list continues in the next lane of the first. So only the last register is shifted by a lane,
// which is the slowest step. (Merging four sorted candidates at a time has shorter chains of instructions, but a leaf
// has too few candidates: it took a quarter longer.)
//
// Integer: uint32_t, or int64_t below the bits of a float64 infinity and not negative.
template <typename Integer, int Room>
class SortedRegisters {
 public:
  using List = Lanes<Integer, Room>;
  using Vector = typename List::Register;
  static constexpr int width = List::width, vectors = List::registers;
  static_assert(Room % width == 0, "whole registers");

  explicit SortedRegisters(const Vector* stored) {
    List::each_register([&](int v) { list_.part[v] = stored[v]; });
  }
  void store(Vector* to) const {
    List::each_register([&](int v) { to[v] = list_.part[v]; });
  }

  // The largest element is dropped.
  void insert(Integer one) {
    Vector x = Vector{} + one, before;
    shift(Vector{}, list_.part[vectors - 1], before);
    List::each_register([&](int i) {
      const int v = vectors - 1 - i;
      Vector larger;
      larger_of(v > 0 ? list_.part[v - 1] : before, x, larger);
      smaller_of(larger, list_.part[v], list_.part[v]);
    });
  }

  // Call use(one) for every element of a stored list, in order.
  template <typename Use>
  static void each(const Vector* stored, const Use& use) {
    const Integer* list = reinterpret_cast<const Integer*>(stored);
    for (int lane = 0; lane < width; ++lane)
      for (int v = 0; v < vectors; ++v) use(list[v * width + lane]);
  }

  // The i-th element of a stored list.
  static Integer at(const Vector* stored, int64_t i) {
    return reinterpret_cast<const Integer*>(stored)[i % vectors * width + i / vectors];
  }

 private:
  // Such 64-bit integers sort like the float64 numbers with these bits. Every processor has instructions for the
  // minimum and maximum of float64 numbers, but some lack them for 64-bit integers. (Subnormal numbers are safe,
  // because kernels do not flush them to 0.)
  static void larger_of(const Vector& a, const Vector& b, Vector& out) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    if constexpr (sizeof(Integer) == 8) {
      out = (Vector)_mm256_max_pd((__m256d)a, (__m256d)b);
      return;
    }
#elif defined(__SSE2__) && !defined(__AVX512F__)
    if constexpr (sizeof(Integer) == 8) {
      out = (Vector)_mm_max_pd((__m128d)a, (__m128d)b);
      return;
    }
#endif
    out = a > b ? a : b;
  }
  static void smaller_of(const Vector& a, const Vector& b, Vector& out) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    if constexpr (sizeof(Integer) == 8) {
      out = (Vector)_mm256_min_pd((__m256d)a, (__m256d)b);
      return;
    }
#elif defined(__SSE2__) && !defined(__AVX512F__)
    if constexpr (sizeof(Integer) == 8) {
      out = (Vector)_mm_min_pd((__m128d)a, (__m128d)b);
      return;
    }
#endif
    out = a < b ? a : b;
  }

  List list_;
};

}  // namespace jztree
