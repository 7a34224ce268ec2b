// The k nearest candidates for small k: sorted lists into which candidates are inserted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kbest.h"

namespace jztree {

// k up to Room, float32: a sorted list in vector registers. Inserting x makes each element the smaller of itself and
// the larger of x and the element before it: two vector instructions a register, and no branch. Neighbours in the list
// are in the same lane of successive registers, from the last of which one goes to the next lane of the first. So only
// the last register is shifted by a lane, which takes longer than all else. (Merging four sorted candidates at a time
// has shorter chains of instructions, but there are too few candidates in a leaf: it took a quarter longer.)
template <int Room>
class VectorKBest final : public KBest<float> {
  using Vector = RegisterType<int64_t>::Vector;
  static constexpr int width = register_bytes / 8;
  static constexpr int vectors = Room / width;

 public:
  explicit VectorKBest(int64_t k) : k_(k) {}

  void reset(int64_t queries, bool own) override {
    lists_.resize(static_cast<size_t>(queries) * vectors);
    std::fill(lists_.begin(), lists_.end(), Vector{} + no_candidate<float>());
    for (int64_t q = 0; own && q < queries; ++q) lists_[static_cast<size_t>(q) * vectors][0] = own_candidate<float>();
  }

  int64_t absorb(int64_t query, const Near<float>& near) override {
    Vector list[vectors];
    Vector* stored = lists_.data() + query * vectors;
    for (int v = 0; v < vectors; ++v) list[v] = stored[v];
    near.each([&](int64_t row, float distance2) {
      insert(make_candidate<float>(distance2, static_cast<uint32_t>(row + 1)), list);
      return true;
    });
    for (int v = 0; v < vectors; ++v) stored[v] = list[v];
    return reinterpret_cast<const int64_t*>(stored)[place(k_ - 1)];
  }

  void finish(int64_t query, int64_t* sorted) override {
    const int64_t* list = reinterpret_cast<const int64_t*>(lists_.data() + query * vectors);
    for (int64_t i = 0; i < Room; ++i) sorted[i] = list[place(i)];
  }

 private:
  // Where the i-th of a list is.
  static int64_t place(int64_t i) { return i % vectors * width + i / vectors; }

  static void insert(int64_t candidate, Vector* list) {
    Vector x = Vector{} + candidate, before;
    shift(Vector{}, list[vectors - 1], before);
    for (int v = vectors - 1; v >= 0; --v) {
      Vector larger;
      larger_of(v > 0 ? list[v - 1] : before, x, larger);
      smaller_of(larger, list[v], list[v]);
    }
  }

  // Candidates are not negative and below the bits of a float64 infinity, so their order is also that of the float64
  // numbers with these bits, for which there are instructions where there are none for 64-bit integers. (Subnormal ones
  // count: kernels keep them.)
  static void larger_of(const Vector& a, const Vector& b, Vector& out) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    out = (Vector)_mm256_max_pd((__m256d)a, (__m256d)b);
#elif defined(__SSE2__) && !defined(__AVX512F__)
    out = (Vector)_mm_max_pd((__m128d)a, (__m128d)b);
#else
    out = a > b ? a : b;
#endif
  }
  static void smaller_of(const Vector& a, const Vector& b, Vector& out) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    out = (Vector)_mm256_min_pd((__m256d)a, (__m256d)b);
#elif defined(__SSE2__) && !defined(__AVX512F__)
    out = (Vector)_mm_min_pd((__m128d)a, (__m128d)b);
#else
    out = a < b ? a : b;
#endif
  }

  // out = the last element of `left`, then all but the last of `right`. By reference: passing vectors by value differs
  // between instruction sets.
  static void shift(const Vector& left, const Vector& right, Vector& out) {
    shift(left, right, out, std::make_integer_sequence<int, width>());
  }
  template <int... Lane>
  static void shift(const Vector& left, const Vector& right, Vector& out, std::integer_sequence<int, Lane...>) {
#if defined(__clang__) || __GNUC__ >= 12
    out = __builtin_shufflevector(left, right, (width - 1 + Lane)...);
#else
    out = __builtin_shuffle(left, right, Vector{(width - 1 + Lane)...});
#endif
  }

  int64_t k_;
  std::vector<Vector> lists_;
};

// float64: a sorted list, insertion from the end.
class SortedKBest final : public KBest<double> {
 public:
  explicit SortedKBest(int64_t k) : k_(k) {}

  void reset(int64_t queries, bool own) override {
    lists_.assign(static_cast<size_t>(queries * k_), no_candidate<double>());
    for (int64_t q = 0; own && q < queries; ++q) lists_[static_cast<size_t>(q * k_)] = own_candidate<double>();
  }

  int128 absorb(int64_t query, const Near<double>& near) override {
    int128* list = lists_.data() + query * k_;
    near.each([&](int64_t row, double distance2) {
      int128 x = make_candidate<double>(distance2, static_cast<uint32_t>(row + 1));
      if (x < list[k_ - 1]) {
        int64_t place = k_ - 1;
        for (; place > 0 && x < list[place - 1]; --place) list[place] = list[place - 1];
        list[place] = x;
      }
      return true;
    });
    return list[k_ - 1];
  }

  void finish(int64_t query, int128* sorted) override {
    std::copy(lists_.data() + query * k_, lists_.data() + (query + 1) * k_, sorted);
  }

 private:
  int64_t k_;
  std::vector<int128> lists_;
};

}  // namespace jztree
