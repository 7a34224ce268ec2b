// The k nearest candidates for k up to Room - 2: a register holds twice as many as with whole candidates.
//
// The sorted items have as many bits as a distance: the first bits of a candidate's squared distance (23 bits in
// float32, 53 in float64), and its index among whole candidates, which are kept separately. The whole candidates are
// sorted at the end. If all items from the k-th to the last have the same first bits, one of the k nearest may have
// been lost: this is a tie that the list cannot decide. In most sets, not one of a thousand lists has such a tie. In a
// lattice every list has one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include "kbest.h"
#include "sorted_registers.h"

namespace jztree {

template <typename T, int Room>
class RoundedKBest final : public KBest<T> {
  using Key = Candidate<T>;
  using Item = std::conditional_t<sizeof(T) == 4, uint32_t, int64_t>;
  using List = SortedRegisters<Item, Room>;
  using Vector = typename List::Vector;

 public:
  static constexpr int max_k = Room - 2;  // two more entries decide ties of two or three

  explicit RoundedKBest(int64_t k) : k_(k) {}

  void reset(int64_t queries, bool self_first) override {
    if (queries > static_cast<int64_t>(held_.size())) {
      held_.resize(static_cast<size_t>(queries));
      kept_.reset(new Key[held_.size() * (places + lanes)]);
      lists_.resize(held_.size() * List::vectors);
    }
    std::fill(held_.begin(), held_.end(), 0);
    std::fill_n(lists_.begin(), queries * List::vectors, Vector{} + none);
    for (int64_t q = 0; self_first && q < queries; ++q) {
      *candidates_of(q) = own_candidate<T>();
      take(q, 1);
    }
  }

  Key absorb(int64_t query, const Near<T>& near) override {
    const int64_t& held = held_[static_cast<size_t>(query)];
    for (int64_t w = 0; w < near.words; ++w) {
      if (near.chosen[w] == 0) continue;
      if (held + Near<T>::word > places && !keep_listed(query)) return nothing();
      take(query, near.pack(w, candidates_of(query) + held));
    }
    return bound(List::at(stored(query), k_ - 1));
  }

  bool finish(int64_t query, Key* sorted) override {
    if (undecided(query)) return false;
    Key* end = sorted;
    List::each(stored(query), [&](Item item) {
      insert_in_order(item == none ? no_candidate<T>() : candidates_of(query)[item % places], sorted, end++);
    });
    return true;
  }

 private:
  static constexpr Item places = 512;
  // Greater than any candidate's item.
  static constexpr Item none = sizeof(T) == 4 ? static_cast<Item>(0xffffffff) : Item{1} << (8 * sizeof(T) - 2);
  // The last bits of a candidate that no item has. Items of float64 begin with two zeros; see SortedRegisters.
  static constexpr int dropped = sizeof(T) == 4 ? 31 : 33;

  static Item rounded(Item item) { return item & ~(places - 1); }

  // An upper limit for candidates with the same rounded distance as the item.
  static Key bound(Item item) {
    return item == none ? no_candidate<T>()
                        : static_cast<Key>(item | (places - 1)) << dropped | ((Key{1} << dropped) - 1);
  }

  // A bound that excludes every candidate.
  static Key nothing() { return make_candidate<T>(-std::numeric_limits<T>::infinity(), 0); }

  // Add the next `count` of the kept whole candidates.
  void take(int64_t query, int64_t count) {
    List list(stored(query));
    const Key* keep = candidates_of(query);
    const int64_t begin = held_[static_cast<size_t>(query)], end = begin + count;
    held_[static_cast<size_t>(query)] = end;
    for (int64_t place = begin; place < end; ++place)
      list.insert(rounded(static_cast<Item>(keep[place] >> dropped)) | static_cast<Item>(place));
    list.store(stored(query));
  }

  // Whether a candidate with the same rounded distance as the k-th may have been dropped from the list.
  bool undecided(int64_t query) {
    const Item last = List::at(stored(query), Room - 1);
    return last != none && rounded(last) == rounded(List::at(stored(query), k_ - 1));
  }

  // Free space among the whole candidates. Returns false during a tie, which might otherwise never end.
  JZTREE_APART bool keep_listed(int64_t query) {
    if (undecided(query)) return false;
    Key listed[Room];
    int64_t count = 0;
    for (Item item; count < Room && (item = List::at(stored(query), count)) != none; ++count)
      listed[count] = candidates_of(query)[item % places];
    std::copy(listed, listed + count, candidates_of(query));
    std::fill_n(stored(query), List::vectors, Vector{} + none);
    held_[static_cast<size_t>(query)] = 0;
    take(query, count);
    return true;
  }

  // Candidates with equal rounded distances are contiguous, so this takes few steps.
  static void insert_in_order(Key candidate, const Key* begin, Key* end) {
    for (; end > begin && candidate < end[-1]; --end) *end = end[-1];
    *end = candidate;
  }

  Vector* stored(int64_t query) { return lists_.data() + query * List::vectors; }
  Key* candidates_of(int64_t query) { return kept_.get() + query * (places + lanes); }

  int64_t k_;
  std::vector<int64_t> held_;    // the number of whole candidates of each query
  std::unique_ptr<Key[]> kept_;  // these candidates, and space to pack more
  std::vector<Vector> lists_;
};

}  // namespace jztree
