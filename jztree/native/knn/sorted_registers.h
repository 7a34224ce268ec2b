// A short sorted list of integers in vector registers, with insertion.
#pragma once

#include <cstdint>
#include <utility>

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
  using Vector = typename RegisterType<Integer>::Vector;
  static constexpr int width = register_bytes / static_cast<int>(sizeof(Integer));
  static constexpr int vectors = Room / width;
  static_assert(Room % width == 0, "whole registers");

  explicit SortedRegisters(const Vector* stored) {
    each_vector([&](int v) { list_[v] = stored[v]; });
  }
  void store(Vector* to) const {
    each_vector([&](int v) { to[v] = list_[v]; });
  }

  // The largest element is dropped.
  void insert(Integer one) {
    Vector x = Vector{} + one, before;
    shift(Vector{}, list_[vectors - 1], before);
    each_vector([&](int i) {
      const int v = vectors - 1 - i;
      Vector larger;
      larger_of(v > 0 ? list_[v - 1] : before, x, larger);
      smaller_of(larger, list_[v], list_[v]);
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
  // Call work(v) for each vector. A loop over the array would become a call or instructions that copy memory, and keep
  // the list there.
  template <typename Work>
  JZTREE_INLINE static void each_vector(const Work& work) {
    each_of(std::make_integer_sequence<int, vectors>{}, work);
  }
  template <typename Work, int... V>
  JZTREE_INLINE static void each_of(std::integer_sequence<int, V...>, const Work& work) {
    (work(V), ...);
  }

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

  Vector list_[vectors];
};

}  // namespace jztree
