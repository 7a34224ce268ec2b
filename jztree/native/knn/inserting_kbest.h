// The k nearest candidates for small k: sorted lists into which candidates are inserted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "kbest.h"

namespace jztree {

// k up to Room, float32: a sorted list in vector registers. Inserting x makes each element i the smaller of itself and
// the larger of x and element i - 1: a few vector instructions, and no branch. (Merging four sorted candidates at a
// time has shorter chains of instructions, but there are too few candidates in a leaf: it took a quarter longer.)
template <int Room>
class VectorKBest final : public KBest<float> {
  using Vector = RegisterType<int64_t>::Vector;
  static constexpr int width = register_bytes / 8;
  static constexpr int vectors = Room / width;

 public:
  explicit VectorKBest(int64_t k) : k_(k) {}

  void reset(int64_t queries) override {
    lists_.resize(static_cast<size_t>(queries) * vectors);
    std::fill(lists_.begin(), lists_.end(), Vector{} + no_candidate<float>());
  }

  int64_t absorb(int64_t query, const int64_t* candidates, int64_t count) override {
    Vector list[vectors];
    Vector* stored = lists_.data() + query * vectors;
    for (int v = 0; v < vectors; ++v) list[v] = stored[v];
    for (int64_t c = 0; c < count; ++c) {
      Vector x = Vector{} + candidates[c];
      for (int v = vectors - 1; v >= 0; --v) {
        Vector before;
        shift(v > 0 ? list[v - 1] : Vector{} - 1, list[v], before);
        Vector larger = before > x ? before : x;
        list[v] = larger < list[v] ? larger : list[v];
      }
    }
    for (int v = 0; v < vectors; ++v) stored[v] = list[v];
    return reinterpret_cast<const int64_t*>(stored)[k_ - 1];
  }

  void finish(int64_t query, int64_t* sorted) override {
    std::memcpy(sorted, lists_.data() + query * vectors, static_cast<size_t>(k_) * sizeof(int64_t));
  }

 private:
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

  void reset(int64_t queries) override { lists_.assign(static_cast<size_t>(queries * k_), no_candidate<double>()); }

  int128 absorb(int64_t query, const int128* candidates, int64_t count) override {
    int128* list = lists_.data() + query * k_;
    for (int64_t c = 0; c < count; ++c) {
      int128 x = candidates[c];
      if (!(x < list[k_ - 1])) continue;
      int64_t place = k_ - 1;
      for (; place > 0 && x < list[place - 1]; --place) list[place] = list[place - 1];
      list[place] = x;
    }
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
