// The k nearest candidates for k up to Room - 2, float32: a register holds twice as many as with whole candidates.
//
// The sorted items have 32 bits: the first 23 bits of a candidate's squared distance, and its index among whole
// candidates, which are kept separately. The whole candidates are sorted at the end. If all items from the k-th to the
// last have the same 23 bits, one of the k nearest may have been lost: this is a tie that the list cannot decide. In
// most sets, not one of a thousand lists has such a tie. In a lattice every list has one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "kbest.h"
#include "sorted_registers.h"

namespace jztree {

template <int Room>
class RoundedKBest final : public KBest<float> {
  using List = SortedRegisters<uint32_t, Room>;
  using Vector = typename List::Vector;

 public:
  explicit RoundedKBest(int64_t k) : k_(k) {}

  void reset(int64_t queries, bool self_first) override {
    if (queries > static_cast<int64_t>(held_.size())) {
      held_.resize(static_cast<size_t>(queries));
      kept_.reset(new int64_t[held_.size() * (places + lanes)]);
      lists_.resize(held_.size() * List::vectors);
    }
    std::fill(held_.begin(), held_.end(), 0);
    std::fill_n(lists_.begin(), queries * List::vectors, Vector{} + none);
    for (int64_t q = 0; self_first && q < queries; ++q) {
      *candidates_of(q) = own_candidate<float>();
      take(q, 1);
    }
  }

  int64_t absorb(int64_t query, const Near<float>& near) override {
    const int64_t& held = held_[static_cast<size_t>(query)];
    for (int64_t w = 0; w < near.words; ++w) {
      if (near.chosen[w] == 0) continue;
      if (held + Near<float>::word > places && !keep_listed(query)) return nothing();
      take(query, near.pack(w, candidates_of(query) + held));
    }
    return bound(List::at(stored(query), k_ - 1));
  }

  bool finish(int64_t query, int64_t* sorted) override {
    if (undecided(query)) return false;
    int64_t* end = sorted;
    List::each(stored(query), [&](uint32_t key) {
      int64_t candidate =
          key == none ? no_candidate<float>() : candidates_of(query)[key % static_cast<uint32_t>(places)];
      insert_in_order(candidate, sorted, end++);
    });
    return true;
  }

 private:
  static constexpr int64_t places = 512;
  // Greater than any candidate's key.
  static constexpr uint32_t none = 0xffffffff;

  static uint32_t rounded(uint32_t key) { return key & ~static_cast<uint32_t>(places - 1); }

  // An upper limit for candidates with the same rounded distance as the key.
  static int64_t bound(uint32_t key) {
    return key == none ? no_candidate<float>() : static_cast<int64_t>(key | (places - 1)) << 31 | no_row;
  }

  // A bound that excludes every candidate.
  static int64_t nothing() { return make_candidate<float>(-std::numeric_limits<float>::infinity(), 0); }

  // Add the next `count` of the kept whole candidates.
  void take(int64_t query, int64_t count) {
    List list(stored(query));
    const int64_t *keep = candidates_of(query), begin = held_[static_cast<size_t>(query)], end = begin + count;
    held_[static_cast<size_t>(query)] = end;
    for (int64_t place = begin; place < end; ++place)
      list.insert(rounded(static_cast<uint32_t>(keep[place] >> 31)) | static_cast<uint32_t>(place));
    list.store(stored(query));
  }

  // Whether a candidate with the same rounded distance as the k-th may have been dropped from the list.
  bool undecided(int64_t query) {
    uint32_t last = List::at(stored(query), Room - 1);
    return last != none && rounded(last) == rounded(List::at(stored(query), k_ - 1));
  }

  // Free space among the whole candidates. Returns false during a tie, which might otherwise never end.
  JZTREE_APART bool keep_listed(int64_t query) {
    if (undecided(query)) return false;
    int64_t listed[Room];
    int64_t count = 0;
    for (uint32_t key; count < Room && (key = List::at(stored(query), count)) != none; ++count)
      listed[count] = candidates_of(query)[key % static_cast<uint32_t>(places)];
    std::copy(listed, listed + count, candidates_of(query));
    std::fill_n(stored(query), List::vectors, Vector{} + none);
    held_[static_cast<size_t>(query)] = 0;
    take(query, count);
    return true;
  }

  // Candidates with equal rounded distances are contiguous, so this takes few steps.
  static void insert_in_order(int64_t candidate, const int64_t* begin, int64_t* end) {
    for (; end > begin && candidate < end[-1]; --end) *end = end[-1];
    *end = candidate;
  }

  Vector* stored(int64_t query) { return lists_.data() + query * List::vectors; }
  int64_t* candidates_of(int64_t query) { return kept_.get() + query * (places + lanes); }

  int64_t k_;
  std::vector<int64_t> held_;        // the number of whole candidates of each query
  std::unique_ptr<int64_t[]> kept_;  // these candidates, and space to pack more
  std::vector<Vector> lists_;
};

}  // namespace jztree
