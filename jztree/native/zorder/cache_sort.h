// Stable sort of 64-bit keys, with second keys to break ties, by one thread and in its cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "common/cpu/huge_vector.h"

namespace jztree {

// Number of bits of a non-zero number.
inline int bit_length(uint64_t x) { return 64 - __builtin_clzll(x); }

// Used for one part after another of the data to sort.
class CacheSort {
 public:
  struct Item {
    uint64_t key;
    uint32_t index;
  };
  struct Range {
    int64_t begin, end;
  };
  using SecondKey = std::function<uint64_t(uint32_t)>;  // of an item's index

  // Space for n items, to be filled before they are sorted.
  Item* items(int64_t n) {
    if (static_cast<int64_t>(items_.size()) < n) {
      items_.resize(static_cast<size_t>(n));
      others_.resize(static_cast<size_t>(n));
    }
    return items_.data();
  }

  // Sort the first n items by (key, second key, place). second: keys are already second keys. Returns the ranges of
  // items that agree in both.
  const std::vector<Range>& sort(int64_t n, bool second, const SecondKey& second_key) {
    second_key_ = &second_key;
    ties_.clear();
    sort_range(0, n, second);
    return ties_;
  }

 private:
  static constexpr int64_t insertion_limit = 32;
  static constexpr int most_bits = 10;

  void sort_range(int64_t begin, int64_t end, bool second) {
    if (end - begin <= insertion_limit) return sort_few(begin, end, second);
    Item* items = items_.data();
    uint64_t varying = 0;
    for (int64_t i = begin; i < end; ++i) varying |= items[i].key ^ items[begin].key;
    if (varying == 0) {
      if (second) {
        ties_.push_back({begin, end});
        return;
      }
      load_second_keys(begin, end);
      return sort_range(begin, end, true);
    }
    // Evenly spread keys would need three bits fewer. With the extra bits, few keys agree.
    int top = bit_length(varying);
    int bits = std::min({top, bit_length(static_cast<uint64_t>(end - begin)) + 3, 2 * most_bits});
    int shift = top - bits;
    two_passes(begin, end, shift, bits);
    for (int64_t i = begin; i < end;) {
      int64_t j = i + 1;
      while (j < end && items[j].key >> shift == items[i].key >> shift) ++j;
      if (j - i > 1) sort_range(i, j, second);
      i = j;
    }
  }

  // Sort by bits [shift, shift + bits), the lower half first.
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

  void sort_few(int64_t begin, int64_t end, bool second) {
    Item* items = items_.data();
    for (int64_t i = begin + 1; i < end; ++i) {
      Item item = items[i];
      int64_t place = i;
      for (; place > begin && item.key < items[place - 1].key; --place) items[place] = items[place - 1];
      items[place] = item;
    }
    for (int64_t i = begin; i < end;) {
      int64_t j = i + 1;
      while (j < end && items[j].key == items[i].key) ++j;
      if (j - i > 1 && second) ties_.push_back({i, j});
      if (j - i > 1 && !second) {
        load_second_keys(i, j);
        sort_few(i, j, true);
      }
      i = j;
    }
  }

  void load_second_keys(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Item& item = items_[static_cast<size_t>(i)];
      item.key = (*second_key_)(item.index);
    }
  }

  const SecondKey* second_key_ = nullptr;
  HugeVector<Item> items_, others_;
  std::vector<Range> ties_;
};

}  // namespace jztree
