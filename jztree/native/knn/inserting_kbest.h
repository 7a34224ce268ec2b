// The k nearest candidates for small k: sorted lists into which candidates are inserted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kbest.h"
#include "sorted_registers.h"

namespace jztree {

// k up to Room, float32: a list in vector registers.
template <int Room>
class VectorKBest final : public KBest<float> {
  using List = SortedRegisters<int64_t, Room>;
  using Vector = typename List::Vector;

 public:
  static constexpr int max_k = Room;

  explicit VectorKBest(int64_t k) : k_(k) {}

  void reset(int64_t queries, bool self_first) override {
    lists_.resize(static_cast<size_t>(queries) * List::vectors);
    std::fill(lists_.begin(), lists_.end(), Vector{} + no_candidate<float>());
    for (int64_t q = 0; self_first && q < queries; ++q) stored(q)[0][0] = own_candidate<float>();
  }

  int64_t absorb(int64_t query, const Near<float>& near) override {
    List list(stored(query));
    near.each([&](int64_t row, float distance2) {
      list.insert(make_candidate<float>(distance2, static_cast<uint32_t>(row + 1)));
      return true;
    });
    list.store(stored(query));
    return List::at(stored(query), k_ - 1);
  }

  bool finish(int64_t query, int64_t* sorted) override {
    List::each(stored(query), [&](int64_t candidate) { *sorted++ = candidate; });
    return true;
  }

 private:
  Vector* stored(int64_t query) { return lists_.data() + query * List::vectors; }

  int64_t k_;
  std::vector<Vector> lists_;
};

// float64: a sorted list, insertion from the end.
class SortedKBest final : public KBest<double> {
 public:
  explicit SortedKBest(int64_t k) : k_(k) {}

  void reset(int64_t queries, bool self_first) override {
    lists_.assign(static_cast<size_t>(queries * k_), no_candidate<double>());
    for (int64_t q = 0; self_first && q < queries; ++q) lists_[static_cast<size_t>(q * k_)] = own_candidate<double>();
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

  bool finish(int64_t query, int128* sorted) override {
    std::copy(lists_.data() + query * k_, lists_.data() + (query + 1) * k_, sorted);
    return true;
  }

 private:
  int64_t k_;
  std::vector<int128> lists_;
};

}  // namespace jztree
