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
  // The number of the part, without its fraction. Never decreases with the distance. V: T, or a vector of T.
  template <typename V>
  V of(const V& distance2) const {
    return larger<V>(smaller<V>((distance2 - V(low_)) * V(per_distance2_), V(last_)), V{});
  }
  // Join this part with all later ones.
  void end_with(int64_t part) { last_ = static_cast<T>(part); }
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
        capacity_(full_ + max_batch + lanes),
        place_(new int32_t[static_cast<size_t>(capacity_)]),
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
      list.keys[0] = own_candidate<T>();
      if (self_first) add(list, 1);
    }
  }

  Key absorb(int64_t query, const Near<T>& near) override {
    List& list = lists_[static_cast<size_t>(query)];
    int64_t count = 0;
    for (int64_t w = 0; w < near.words; ++w) count += near.pack(w, list.keys + list.held + count);
    add(list, count);
    return list.bound;
  }
  bool finish(int64_t query, Key* sorted) override {
    List& list = lists_[static_cast<size_t>(query)];
    drop_beyond(list);
    sort(list, sorted);
    if (list.held < k_) std::fill(sorted + list.held, sorted + k_, no_candidate<T>());
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

  // Add the next `count` of the packed candidates.
  void add(List& list, int64_t count) {
    const int64_t held = list.held;
    list.held += count;
    if (held >= k_) {
      count_from(list, held);
    } else if (list.held >= k_) {
      lay_out(list);
    }
    if (list.held >= full_) cut(list);
  }

  // Find the parts of candidates. Whole blocks may be read and written.
  const int32_t* places_of(const Parts<T>& parts, const Key* candidates, int64_t count) {
    int32_t* place = place_.get();
    if constexpr (sizeof(T) == 4) {
      for (int64_t block = 0; block < count; block += lanes) {
        Lanes<T> distance2;
        load_distances(candidates + block, distance2);
        store(parts.of(distance2), place + block);
      }
    } else {
      for (int64_t i = 0; i < count; ++i)
        place[i] = static_cast<int32_t>(parts.of(candidate_distance2<T>(candidates[i])));
    }
    return place;
  }

  // Count candidates from the `first` of a list on in its buckets.
  void count_from(List& list, int64_t first) {
    const int32_t* place = places_of(list.parts, list.keys + first, list.held - first);
    for (int64_t i = 0; i < list.held - first; ++i) ++list.counts[place[i]];
    list.inside += list.held - first;
    tighten(list);
  }

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
    list.inside = 0;
    std::fill_n(list.counts, buckets, 0u);
    count_from(list, 0);
  }

  // Drop the farthest buckets as long as the others hold k.
  void tighten(List& list) {
    int64_t top = list.top;
    while (list.inside - list.counts[top] >= k_) list.inside -= list.counts[top--];
    if (top == list.top || !list.parts.is_split()) return;
    list.top = top;
    list.parts.end_with(top);
    list.bound = std::min(list.bound, make_candidate<T>(list.parts.end(top), no_row));
  }

  void drop_beyond(List& list) { list.held = keep_at_most(list.keys, list.held, list.bound); }

  // Drop the candidates above the bound; if that is not enough, all but the k best.
  void cut(List& list) {
    drop_beyond(list);
    if (list.held <= k_ + (full_ - k_) / 2) return;
    std::nth_element(list.keys, list.keys + k_ - 1, list.keys + list.held);
    list.held = k_;
    lay_out(list);
  }

  // Write the candidates of a list in order.
  void sort(const List& list, Key* sorted) {
    const Parts<T> parts = range(list).parts(static_cast<int64_t>(starts_.size()) - 1);
    std::fill(starts_.begin(), starts_.end(), 0u);
    const Key* keys = list.keys;
    const int64_t held = list.held;
    const int32_t* place = places_of(parts, keys, held);
    uint32_t fullest = 0;
    for (int64_t i = 0; i < held; ++i) fullest = std::max(fullest, ++starts_[static_cast<size_t>(place[i] + 1)]);
    for (size_t p = 1; p < starts_.size(); ++p) starts_[p] += starts_[p - 1];
    for (int64_t i = 0; i < held; ++i) sorted[starts_[static_cast<size_t>(place[i])]++] = keys[i];
    if (fullest > crowd) sort_crowds(sorted);
    insertion_sort(sorted, held);
  }

  // Sort places that are too crowded for insertion. At this stage, each entry is the end of its place.
  void sort_crowds(Key* sorted) {
    uint32_t begin = 0;
    for (uint32_t end : starts_) {
      if (end > begin + crowd) std::sort(sorted + begin, sorted + end);
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
  int64_t capacity_;  // includes space to pack the candidates of one more call
  int64_t room_ = 0;  // number of queries with buffers
  std::unique_ptr<Key[]> keys_;
  std::vector<List> lists_;
  // For sorting.
  std::unique_ptr<int32_t[]> place_;
  std::vector<uint32_t> starts_;
};

}  // namespace jztree
