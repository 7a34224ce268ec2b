// The k nearest candidates for any k. The number of steps per candidate does not grow with k.
//
// Candidates below the bound are appended to a buffer and counted by distance. Their buckets have equal width in the
// squared distance, from the nearest to the farthest of the first k. The far end of the bucket of the k-th candidate is
// a bound, so a bucket is dropped when the buckets before it hold k. This takes one subtraction, whereas selection
// would pass over the buffer with unpredictable branches. At the end, the remaining candidates are distributed to
// places of equal width in the squared distance, about two per candidate. In the resulting order, only few neighbours
// have to be exchanged.
//
// If the counts are not selective (ties, a range of many orders of magnitude), the buffer becomes full. Then the k best
// are selected, and the buckets are laid out anew.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/geometry.h"
#include "kbest.h"

namespace jztree {

// Equal parts of a range of squared distances. The first part includes everything nearer, the last everything farther.
template <typename T>
class Parts {
 public:
  Parts() = default;
  Parts(T low, T high, int64_t count) : low_(low), last_(static_cast<T>(count - 1)) {
    if (high - low >= smallest) per_distance2_ = static_cast<T>(count) / (high - low);
  }

  // Whether there is more than one part.
  bool is_split() const { return per_distance2_ > 0; }
  // Never decreases with the distance.
  int64_t of(T distance2) const {
    T place = (distance2 - low_) * per_distance2_;
    return static_cast<int64_t>(std::max(std::min(place, last_), T{0}));
  }
  // An upper limit of the squared distances in a part that is not the last.
  T end(int64_t part) const { return (low_ + static_cast<T>(part + 1) / per_distance2_) * above_one<T>; }

 private:
  // Leaves a margin for the inverse, for any number of parts, and for threads that flush subnormal numbers to zero.
  static constexpr T smallest = static_cast<T>(0x1p-80);

  T low_ = 0, last_ = 0, per_distance2_ = 0;
};

template <typename T>
class CountedKBest final : public KBest<T> {
  using Key = Candidate<T>;

 public:
  // max_batch: the largest number of candidates in one call of absorb.
  CountedKBest(int64_t k, int64_t max_batch)
      : k_(k),
        full_(2 * k + 64),
        capacity_(full_ + max_batch),
        packed_(new Key[static_cast<size_t>(max_batch + lanes)]),
        dealt_(new Key[static_cast<size_t>(capacity_)]),
        place_(new uint32_t[static_cast<size_t>(capacity_)]),
        starts_(static_cast<size_t>(2 * k + 1)) {}

  void reset(int64_t queries, bool self_first) override {
    if (queries > room_) {
      room_ = queries;
      keys_.reset(new Key[static_cast<size_t>(room_ * capacity_)]);
    }
    lists_.resize(static_cast<size_t>(queries));
    for (List& list : lists_) {
      list.keys = keys_.get() + (&list - lists_.data()) * capacity_;
      list.bound = no_candidate<T>();
      list.held = 0;
      const Key first = own_candidate<T>();
      if (self_first) add(list, &first, 1);
    }
  }

  Key absorb(int64_t query, const Near<T>& near) override {
    List& list = lists_[static_cast<size_t>(query)];
    add(list, packed_.get(), pack(near));
    return list.bound;
  }
  bool finish(int64_t query, Key* sorted) override {
    List& list = lists_[static_cast<size_t>(query)];
    drop_beyond(list);
    sort(list);
    int64_t number = std::min(k_, list.held);
    std::copy(dealt_.get(), dealt_.get() + number, sorted);
    std::fill(sorted + number, sorted + k_, no_candidate<T>());
    return true;
  }

 private:
  static constexpr int64_t buckets = 64;

  struct List {
    Key* keys;
    Key bound;
    int64_t held;  // candidates in the buffer; the members below are set once there are k
    Parts<T> parts;
    int64_t top;     // the bucket of the k-th candidate
    int64_t inside;  // candidates in buckets up to that one
    uint32_t counts[buckets];
  };

  // Put the candidates into `packed_`; returns their number.
  int64_t pack(const Near<T>& near) {
    int64_t count = 0;
    for (int64_t w = 0; w < near.words; ++w) count += near.pack(w, packed_.get() + count);
    return count;
  }

  void add(List& list, const Key* candidates, int64_t count) {
    if (list.held < k_) {
      std::copy(candidates, candidates + count, list.keys + list.held);
      list.held += count;
      if (list.held >= k_) lay_out(list);
    } else {
      take(list, candidates, count);
    }
    if (list.held >= full_) cut(list);
  }

  static int64_t part(const Parts<T>& parts, Key key) { return parts.of(candidate_distance2<T>(key)); }

  struct Range {
    Key nearest, farthest;
    Parts<T> parts(int64_t count) const {
      return Parts<T>(candidate_distance2<T>(nearest), candidate_distance2<T>(farthest), count);
    }
  };

  static Range range(const List& list) {
    Range range{no_candidate<T>(), 0};
    for (int64_t i = 0; i < list.held; ++i) {
      Key key = list.keys[i];
      range.nearest = key < range.nearest ? key : range.nearest;
      range.farthest = key > range.farthest ? key : range.farthest;
    }
    return range;
  }

  // Lay out the buckets from the nearest to the farthest candidate, and count.
  void lay_out(List& list) {
    Range all = range(list);
    list.bound = all.farthest;
    list.parts = all.parts(buckets);
    list.top = buckets - 1;
    list.inside = list.held;
    std::fill_n(list.counts, buckets, 0u);
    for (int64_t i = 0; i < list.held; ++i) ++list.counts[part(list.parts, list.keys[i])];
    tighten(list);
  }

  void take(List& list, const Key* candidates, int64_t count) {
    const Parts<T> parts = list.parts;
    const Key bound = list.bound;
    Key* next = list.keys + list.held;
    for (int64_t c = 0; c < count; ++c) {
      Key key = candidates[c];
      int64_t bucket = part(parts, key);
      bool is_kept = (bucket <= list.top) & (key < bound);
      *next = key;
      list.counts[bucket] += is_kept;
      next += is_kept;
    }
    int64_t held = next - list.keys;
    list.inside += held - list.held;
    list.held = held;
    tighten(list);
  }

  // Drop the farthest buckets as long as the others hold k.
  void tighten(List& list) {
    int64_t top = list.top;
    while (list.inside - list.counts[top] >= k_) list.inside -= list.counts[top--];
    if (top == list.top || !list.parts.is_split()) return;
    list.top = top;
    list.bound = std::min(list.bound, make_candidate<T>(list.parts.end(top), no_row));
  }

  void drop_beyond(List& list) {
    Key* kept = list.keys;
    for (const Key *key = list.keys, *end = key + list.held; key < end; ++key) {
      Key moved = *key;
      *kept = moved;
      kept += !(list.bound < moved);
    }
    list.held = kept - list.keys;
  }

  // Drop the candidates above the bound; if that is not enough, all but the k best.
  void cut(List& list) {
    drop_beyond(list);
    if (list.held <= k_ + (full_ - k_) / 2) return;
    std::nth_element(list.keys, list.keys + k_ - 1, list.keys + list.held);
    list.held = k_;
    lay_out(list);
  }

  // Put the candidates of a list into `dealt_`, in order.
  void sort(const List& list) {
    const Parts<T> parts = range(list).parts(static_cast<int64_t>(starts_.size()) - 1);
    std::fill(starts_.begin(), starts_.end(), 0u);
    for (int64_t i = 0; i < list.held; ++i) {
      place_[i] = static_cast<uint32_t>(part(parts, list.keys[i]));
      ++starts_[place_[i] + 1];
    }
    uint32_t fullest = 0;
    for (size_t p = 1; p < starts_.size(); ++p) {
      fullest = std::max(fullest, starts_[p]);
      starts_[p] += starts_[p - 1];
    }
    for (int64_t i = 0; i < list.held; ++i) dealt_[starts_[place_[i]]++] = list.keys[i];
    if (fullest > crowd) sort_crowds();
    insertion_sort(dealt_.get(), list.held);
  }

  // Sort places that are too crowded for insertion. At this stage, each entry is the end of its place.
  void sort_crowds() {
    uint32_t begin = 0;
    for (uint32_t end : starts_) {
      if (end > begin + crowd) std::sort(&dealt_[begin], dealt_.get() + end);
      begin = end;
    }
  }

  static void insertion_sort(Key* keys, int64_t count) {
    for (int64_t i = 1; i < count; ++i) {
      Key key = keys[i];
      int64_t place = i;
      for (; place > 0 && key < keys[place - 1]; --place) keys[place] = keys[place - 1];
      keys[place] = key;
    }
  }

  static constexpr uint32_t crowd = 16;

  int64_t k_;
  int64_t full_;      // the buffer is cut down when it holds this number of candidates
  int64_t capacity_;  // includes space for the candidates of one more call
  int64_t room_ = 0;  // number of queries with buffers
  std::unique_ptr<Key[]> packed_;
  std::unique_ptr<Key[]> keys_;
  std::vector<List> lists_;
  // For sorting.
  std::unique_ptr<Key[]> dealt_;
  std::unique_ptr<uint32_t[]> place_;
  std::vector<uint32_t> starts_;
};

}  // namespace jztree
