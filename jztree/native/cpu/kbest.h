// The k nearest candidates seen so far, for every query of a group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "candidate.h"

namespace jztree {

template <typename T>
class KBest {
 public:
  using Key = Candidate<T>;
  virtual ~KBest() = default;
  // Forgets everything; queries below `queries` can be used from then on.
  virtual void reset(int64_t queries) = 0;
  // Takes candidates of a query; returns a bound that its k-th best does not exceed.
  virtual Key absorb(int64_t query, const Key* candidates, int64_t count) = 0;
  // Writes the k best of a query in order, no_candidate() where there are fewer.
  virtual void finish(int64_t query, Key* sorted) = 0;
};

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

// Any k. Candidates below the bound are collected; when the space is full, selection keeps the k best and tightens the
// bound, so a candidate costs a constant number of steps whatever k is.
template <typename T>
class BufferedKBest final : public KBest<T> {
  using Key = Candidate<T>;

 public:
  // most: the largest count of one call of absorb.
  BufferedKBest(int64_t k, int64_t most) : k_(k), full_(k + std::max<int64_t>(k / 2, 16)), capacity_(full_ + most) {}

  void reset(int64_t queries) override {
    if (queries * capacity_ > space_) {
      space_ = queries * capacity_;
      keys_.reset(new Key[static_cast<size_t>(space_)]);
    }
    counts_.assign(static_cast<size_t>(queries), 0);
    bounds_.assign(static_cast<size_t>(queries), no_candidate<T>());
  }

  Key absorb(int64_t query, const Key* candidates, int64_t count) override {
    size_t q = static_cast<size_t>(query);
    Key* keys = keys_.get() + query * capacity_;
    int64_t held = counts_[q];
    for (int64_t c = 0; c < count; ++c) {
      keys[held] = candidates[c];
      held += candidates[c] < bounds_[q];
    }
    bool first_bound = held >= k_ && counts_[q] < k_;
    if (first_bound || held >= full_) {
      std::nth_element(keys, keys + k_ - 1, keys + held);
      bounds_[q] = keys[k_ - 1];
      held = k_;
    }
    counts_[q] = held;
    return bounds_[q];
  }

  void finish(int64_t query, Key* sorted) override {
    size_t q = static_cast<size_t>(query);
    Key* keys = keys_.get() + query * capacity_;
    std::sort(keys, keys + counts_[q]);
    int64_t found = std::min(k_, counts_[q]);
    std::copy(keys, keys + found, sorted);
    std::fill(sorted + found, sorted + k_, no_candidate<T>());
  }

 private:
  int64_t k_;
  int64_t full_;      // candidates from which on the k best are selected
  int64_t capacity_;  // room for what one more call may bring
  int64_t space_ = 0;
  std::unique_ptr<Key[]> keys_;
  std::vector<int64_t> counts_;
  std::vector<Key> bounds_;
};

// k up to 32, float64: a sorted list, insertion from the end.
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

template <typename T>
std::unique_ptr<KBest<T>> make_kbest(int64_t k, int64_t most);

template <>
inline std::unique_ptr<KBest<float>> make_kbest<float>(int64_t k, int64_t most) {
  if (k <= 8) return std::make_unique<VectorKBest<8>>(k);
  if (k <= 16) return std::make_unique<VectorKBest<16>>(k);
  if (k <= 32) return std::make_unique<VectorKBest<32>>(k);
  // Eight registers of 64 bytes; smaller ones would be too many to insert into.
  if (register_bytes == 64 && k <= 64) return std::make_unique<VectorKBest<64>>(k);
  return std::make_unique<BufferedKBest<float>>(k, most);
}

template <>
inline std::unique_ptr<KBest<double>> make_kbest<double>(int64_t k, int64_t most) {
  if (k <= 32) return std::make_unique<SortedKBest>(k);
  return std::make_unique<BufferedKBest<double>>(k, most);
}

}  // namespace jztree
