// Stable parallel sort of (64-bit key, row) pairs.
//
// All threads deal the pairs out by the highest bits in which the keys differ, into parts that fit into a core's cache;
// then each part is sorted there by one thread. So memory is passed through twice whatever the number of pairs. Parts
// that are too large because their keys have more bits in common, such as those of a clump, are dealt out again by
// their own highest bits. An outlier that shares no high bit with the rest costs one such round more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "../common/morton.h"
#include "memory.h"
#include "parallel.h"

namespace jztree {

// Number of bits of a number that is not 0.
inline int bit_length(uint64_t x) { return 64 - __builtin_clzll(x); }

struct RowRange {
  int64_t begin, end;
};

// Sorts what one thread has in its cache; used for one part after another.
// LowKey: row -> uint64_t, the second half of the key, asked for only where first halves are equal.
template <typename LowKey>
class CacheSort {
 public:
  explicit CacheSort(const LowKey& low_key) : low_key_(low_key) {}

  // Writes the rows in the order of (key, low key, place) to `sorted`, which may be where they are. low: the keys are
  // second halves, because the first are all equal. Returns the ranges of at least shared_key_run rows with equal keys.
  const std::vector<RowRange>& sort(const uint64_t* keys, const uint32_t* rows, int64_t n, bool low, uint32_t* sorted) {
    if (static_cast<int64_t>(items_.size()) < n) {
      items_.resize(static_cast<size_t>(n));
      others_.resize(static_cast<size_t>(n));
    }
    for (int64_t i = 0; i < n; ++i) items_[static_cast<size_t>(i)] = {keys[i], rows[i]};
    ties_.clear();
    sort_range(0, n, low);
    for (int64_t i = 0; i < n; ++i) sorted[i] = items_[static_cast<size_t>(i)].row;
    return ties_;
  }

 private:
  struct Item {
    uint64_t key;
    uint32_t row;
  };
  static constexpr int64_t few = shared_key_run - 1;  // so that few items are never a range of ties
  static constexpr int most_bits = 10;

  void sort_range(int64_t begin, int64_t end, bool low) {
    if (end - begin <= few) return sort_few(begin, end, low);
    Item* items = items_.data();
    uint64_t varying = 0;
    for (int64_t i = begin; i < end; ++i) varying |= items[i].key ^ items[begin].key;
    if (varying == 0) {
      if (low) {
        ties_.push_back({begin, end});
        return;
      }
      load_low_keys(begin, end);
      return sort_range(begin, end, true);
    }
    // Three bits more than would do if keys were spread evenly leave few of them together.
    int top = bit_length(varying);
    int bits = std::min({top, bit_length(static_cast<uint64_t>(end - begin)) + 3, 2 * most_bits});
    int shift = top - bits;
    two_passes(begin, end, shift, bits);
    for (int64_t i = begin; i < end;) {
      int64_t j = i + 1;
      while (j < end && items[j].key >> shift == items[i].key >> shift) ++j;
      if (j - i > 1) sort_range(i, j, low);
      i = j;
    }
  }

  // Sorts by bits [shift, shift + bits), the lower half of them first.
  void two_passes(int64_t begin, int64_t end, int shift, int bits) {
    int low_bits = (bits + 1) / 2, high_shift = shift + low_bits;
    uint64_t low_mask = (uint64_t{1} << low_bits) - 1, high_mask = (uint64_t{1} << (bits - low_bits)) - 1;
    int64_t low_starts[1 << most_bits] = {}, high_starts[1 << most_bits] = {};
    Item *items = items_.data(), *others = others_.data();
    for (int64_t i = begin; i < end; ++i) {
      ++low_starts[items[i].key >> shift & low_mask];
      ++high_starts[items[i].key >> high_shift & high_mask];
    }
    int64_t low_total = begin, high_total = begin;
    for (uint64_t digit = 0; digit <= low_mask; ++digit) {
      low_total += std::exchange(low_starts[digit], low_total);
      high_total += std::exchange(high_starts[digit], high_total);
    }
    for (int64_t i = begin; i < end; ++i) others[low_starts[items[i].key >> shift & low_mask]++] = items[i];
    for (int64_t i = begin; i < end; ++i) items[high_starts[others[i].key >> high_shift & high_mask]++] = others[i];
  }

  void sort_few(int64_t begin, int64_t end, bool low) {
    Item* items = items_.data();
    for (int64_t i = begin + 1; i < end; ++i) {
      Item item = items[i];
      int64_t place = i;
      for (; place > begin && item.key < items[place - 1].key; --place) items[place] = items[place - 1];
      items[place] = item;
    }
    if (low) return;
    for (int64_t i = begin; i < end;) {
      int64_t j = i + 1;
      while (j < end && items[j].key == items[i].key) ++j;
      if (j - i > 1) {
        load_low_keys(i, j);
        sort_few(i, j, true);
      }
      i = j;
    }
  }

  void load_low_keys(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      items_[static_cast<size_t>(i)].key = low_key_(items_[static_cast<size_t>(i)].row);
  }

  const LowKey& low_key_;
  std::vector<Item> items_, others_;
  std::vector<RowRange> ties_;
};

// Ties: (rows, count) -> void, may reorder rows whose keys are equal in both halves; called for `shared_key_run`
// of them and more.
template <typename LowKey, typename Ties>
class KeySort {
 public:
  // Sorts rows[0..n) by (key, low key, place), and spoils the keys. rows need not be in order at the start.
  KeySort(const Parallel& parallel, const LowKey& low_key, const Ties& ties, uint64_t* keys, uint32_t* rows, int64_t n)
      : parallel_(parallel), low_key_(low_key), ties_(ties), rows_(rows), here_{keys, rows} {
    if (n <= one_thread) {
      CacheSort<LowKey> cache(low_key_);
      sort_part(cache, here_, 0, n, false);
      return;
    }
    other_keys_ = Scratch<uint64_t>(n);
    other_rows_ = Scratch<uint32_t>(n);
    sort_range(here_, {other_keys_.get(), other_rows_.get()}, 0, n, false);
  }

 private:
  struct Pairs {
    uint64_t* keys;
    uint32_t* rows;
  };
  static constexpr int64_t one_thread = 1 << 13;    // below that, threads are not worth their start
  static constexpr int64_t part = 1 << 10;          // pairs that a part should have
  static constexpr int64_t largest_part = 1 << 17;  // sorted in 4 MiB, what a core has of caches
  static constexpr int most_bits = 11;

  // Sorts what is in `from`; `to` is room for it.
  void sort_range(Pairs from, Pairs to, int64_t begin, int64_t end, bool low) {
    uint64_t varying = varying_bits(from.keys, begin, end);
    if (varying == 0) {
      if (low) {
        if (from.rows != rows_) std::copy(from.rows + begin, from.rows + end, rows_ + begin);
        return ties_(rows_ + begin, end - begin);
      }
      load_low_keys(from, begin, end);
      return sort_range(from, to, begin, end, true);
    }
    int top = bit_length(varying);
    int bits = std::min({top, most_bits, bit_length(static_cast<uint64_t>((end - begin) / part))});
    std::vector<int64_t> ends = deal_out(from, to, begin, end, top - bits, bits);
    for (const RowRange& large : sort_parts(to, begin, ends, low)) sort_range(to, from, large.begin, large.end, low);
  }

  uint64_t varying_bits(const uint64_t* keys, int64_t begin, int64_t end) const {
    std::mutex mutex;
    uint64_t varying = 0, first = keys[begin];
    parallel_.blocks(end - begin, 1 << 16, [&](int64_t from, int64_t to) {
      uint64_t bits = 0;
      for (int64_t i = begin + from; i < begin + to; ++i) bits |= keys[i] ^ first;
      std::lock_guard<std::mutex> lock(mutex);
      varying |= bits;
    });
    return varying;
  }

  void load_low_keys(Pairs pairs, int64_t begin, int64_t end) const {
    parallel_.blocks(end - begin, 1 << 14, [&](int64_t from, int64_t to) {
      for (int64_t i = begin + from; i < begin + to; ++i) pairs.keys[i] = low_key_(pairs.rows[i]);
    });
  }

  // Moves pairs into the order of the bits [shift, shift + bits) of their keys, stable, and returns where each value of
  // these ends.
  std::vector<int64_t> deal_out(Pairs from, Pairs to, int64_t begin, int64_t end, int shift, int bits) const {
    int64_t n = end - begin, digits = int64_t{1} << bits;
    uint64_t mask = static_cast<uint64_t>(digits - 1);
    int64_t grain = std::max<int64_t>(1 << 14, (n + 4 * parallel_.threads() - 1) / (4 * parallel_.threads()));
    int64_t blocks = (n + grain - 1) / grain;
    std::vector<int64_t> places(static_cast<size_t>(blocks * digits), 0);
    parallel_.blocks(blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) {
        int64_t* count = places.data() + block * digits;
        for (int64_t i = begin + block * grain; i < std::min(end, begin + (block + 1) * grain); ++i)
          ++count[from.keys[i] >> shift & mask];
      }
    });
    int64_t total = begin;
    for (int64_t digit = 0; digit < digits; ++digit)
      for (int64_t block = 0; block < blocks; ++block)
        total += std::exchange(places[static_cast<size_t>(block * digits + digit)], total);
    parallel_.blocks(blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) {
        int64_t* next = places.data() + block * digits;
        for (int64_t i = begin + block * grain; i < std::min(end, begin + (block + 1) * grain); ++i) {
          int64_t place = next[from.keys[i] >> shift & mask]++;
          to.keys[place] = from.keys[i];
          to.rows[place] = from.rows[i];
        }
      }
    });
    return {places.end() - digits, places.end()};
  }

  // Sorts the parts that fit into a cache, and returns the others.
  std::vector<RowRange> sort_parts(Pairs pairs, int64_t begin, const std::vector<int64_t>& ends, bool low) const {
    std::mutex mutex;
    std::vector<RowRange> large;
    int64_t parts = static_cast<int64_t>(ends.size());
    parallel_.blocks(
        parts, std::clamp<int64_t>(parts / (16 * parallel_.threads()), 1, 64), [&](int64_t first, int64_t last) {
          CacheSort<LowKey> cache(low_key_);
          for (int64_t i = first; i < last; ++i) {
            int64_t from = i > 0 ? ends[static_cast<size_t>(i - 1)] : begin, to = ends[static_cast<size_t>(i)];
            if (to - from <= largest_part) {
              sort_part(cache, pairs, from, to, low);
            } else {
              std::lock_guard<std::mutex> lock(mutex);
              large.push_back({from, to});
            }
          }
        });
    return large;
  }

  void sort_part(CacheSort<LowKey>& cache, Pairs pairs, int64_t begin, int64_t end, bool low) const {
    for (const RowRange& tied : cache.sort(pairs.keys + begin, pairs.rows + begin, end - begin, low, rows_ + begin))
      ties_(rows_ + begin + tied.begin, tied.end - tied.begin);
  }

  const Parallel& parallel_;
  const LowKey& low_key_;
  const Ties& ties_;
  uint32_t* rows_;
  Pairs here_;
  Scratch<uint64_t> other_keys_;
  Scratch<uint32_t> other_rows_;
};

}  // namespace jztree
