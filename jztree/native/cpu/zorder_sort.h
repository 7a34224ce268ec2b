// Stable parallel sort of positions by Morton key.
//
// All threads deal the rows out by the highest bits in which the keys differ, into parts that fit into a core's cache;
// then each part is sorted there by one thread. Positions go along with their row numbers and keys are made where they
// are asked for, which takes less time than to store and to load them. So memory is passed through three times whatever
// the number of rows, and in no pass is a place read in random order that is not in the cache. Parts that are too large
// because their keys have more bits in common, such as those of a clump, are dealt out again by their own highest bits.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "../common/morton.h"
#include "key_block.h"
#include "memory.h"
#include "parallel.h"

namespace jztree {

template <int D, typename T>
bool is_finite_row(const T* x) {
  bool finite = true;
  for (int d = 0; d < D; ++d) finite &= std::isfinite(x[d]);
  return finite;
}

// Number of bits of a number that is not 0.
inline int bit_length(uint64_t x) { return 64 - __builtin_clzll(x); }

// Positions and the rows that they were given in.
template <int D, typename T>
struct RowArrays {
  uint32_t* row;
  T* x;

  void set(int64_t place, uint32_t from, const T* position) const {
    row[place] = from;
    std::memcpy(x + place * D, position, D * sizeof(T));
  }
};

// Halves of the keys of consecutive positions. low: the second halves, which are asked for where the first are all
// equal.
template <int D, typename T>
class HalfKeys {
 public:
  HalfKeys(const KeyGrid<D>& grid, bool low) : grid_(grid), block_(grid), low_(low) {}

  static uint64_t of(const KeyGrid<D>& grid, const T* x, bool low) {
    return low ? Morton<D>::key(grid, x).low : Morton<D>::high(grid, x);
  }

  // Calls use(i, key, finite) for each of n positions. finite: whether it is sure that this one is.
  template <typename Use>
  void each(const T* x, int64_t n, const Use& use) {
    uint64_t keys[KeyBlock<D, T>::most];
    for (int64_t begin = 0; begin < n; begin += KeyBlock<D, T>::most) {
      int64_t count = std::min(n - begin, KeyBlock<D, T>::most);
      bool finite = false;
      if (low_) {
        for (int64_t i = 0; i < count; ++i) keys[i] = of(grid_, x + (begin + i) * D, true);
      } else {
        finite = block_.high(x + begin * D, count, keys);
      }
      for (int64_t i = 0; i < count; ++i) use(begin + i, keys[i], finite);
    }
  }

 private:
  const KeyGrid<D>& grid_;
  KeyBlock<D, T> block_;
  const bool low_;
};

// Brings positions of one key, listed in `index`, in their order if they are many.
template <int D, typename T>
void order_ties(const KeyGrid<D>& grid, const T* pos, uint32_t* index, int64_t count) {
  auto bits = [&](uint32_t i) { return BitOrder<D>(grid, pos + static_cast<int64_t>(i) * D); };
  BitOrder<D> first = bits(index[0]);
  // Equal points are many where there are any, and in order already.
  if (std::all_of(index, index + count, [&](uint32_t i) { return bits(i) == first; })) return;
  std::stable_sort(index, index + count, [&](uint32_t a, uint32_t b) { return bits(a) < bits(b); });
}

// Sorts what one thread has in its cache; used for one part after another.
template <int D, typename T>
class CacheSort {
 public:
  explicit CacheSort(const KeyGrid<D>& grid) : grid_(grid), high_keys_(grid, false), low_keys_(grid, true) {}

  // Writes n rows from a place on in the order of (key, place), to the same place of `to`, which may be `from`. low:
  // the first halves of their keys are all equal.
  void sort(const RowArrays<D, T>& from, const RowArrays<D, T>& to, int64_t place, int64_t n, bool low) {
    size_t size = static_cast<size_t>(n);
    if (items_.size() < size) {
      items_.resize(size);
      others_.resize(size);
      index_.resize(size);
      rows_.resize(size);
      pos_.resize(size * D);
    }
    std::copy(from.row + place, from.row + place + n, rows_.begin());
    std::copy(from.x + place * D, from.x + (place + n) * D, pos_.begin());
    (low ? low_keys_ : high_keys_).each(pos_.data(), n, [&](int64_t i, uint64_t key, bool) {
      items_[static_cast<size_t>(i)] = {key, static_cast<uint32_t>(i)};
    });
    ties_.clear();
    sort_range(0, n, low);
    for (size_t i = 0; i < size; ++i) index_[i] = items_[i].index;
    for (const Range& tied : ties_) order_ties(grid_, pos_.data(), index_.data() + tied.begin, tied.end - tied.begin);
    for (size_t i = 0; i < size; ++i)
      to.set(place + static_cast<int64_t>(i), rows_[index_[i]], pos_.data() + size_t{index_[i]} * D);
  }

 private:
  struct Item {
    uint64_t key;
    uint32_t index;
  };
  struct Range {
    int64_t begin, end;
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
    for (int64_t i = begin; i < end; ++i) {
      Item& item = items_[static_cast<size_t>(i)];
      item.key = HalfKeys<D, T>::of(grid_, pos_.data() + size_t{item.index} * D, true);
    }
  }

  const KeyGrid<D>& grid_;
  HalfKeys<D, T> high_keys_, low_keys_;
  std::vector<Item> items_, others_;
  std::vector<uint32_t> rows_, index_;
  std::vector<T> pos_;
  std::vector<Range> ties_;
};

template <int D, typename T>
class ZSort {
 public:
  using Rows = RowArrays<D, T>;

  // Sorts the first n rows of pos by (key, place). Rows that are not finite come after the others, in their order.
  ZSort(const Parallel& parallel, const KeyGrid<D>& grid, const T* pos, int64_t n, const Rows& out)
      : parallel_(parallel), grid_(grid), out_(out) {
    std::vector<int64_t> ends = deal_out(Given{pos}, out, 0, n, sampled_digits(pos, n), false);
    std::vector<Range> large = sort_parts(out, 0, ends, false);
    if (large.empty()) return;
    Scratch<uint32_t> row(n);
    Scratch<T> x(n * D);
    for (const Range& range : large) sort_range(out, {row.get(), x.get()}, range.begin, range.end, false);
  }

 private:
  struct Range {
    int64_t begin, end;
  };
  static constexpr int64_t one_thread = 1 << 13;    // below that, threads are not worth their start
  static constexpr int64_t part = 1 << 10;          // rows that a part should have
  static constexpr int64_t largest_part = 1 << 17;  // sorted in 4 MiB, what a core has of caches
  static constexpr int64_t samples = 1 << 10;
  static constexpr int most_bits = 11;
  static constexpr int64_t prefetch_distance = 12;

  // Keys dealt out by `bits` of their bits, those of the range [base, base + 2^(shift + bits)); keys outside of it go
  // with the first and the last of these. So any choice keeps the order.
  struct Digits {
    uint64_t base;
    int shift, bits;

    // Of the bits that vary, the highest, as many as n rows need.
    Digits(uint64_t key, uint64_t varying, int64_t n) {
      int top = varying == 0 ? 0 : bit_length(varying);
      bits = std::min({top, most_bits, n > one_thread ? bit_length(static_cast<uint64_t>(n / part)) : 0});
      shift = bits > 0 ? top - bits : 0;
      base = top < 64 ? key >> top << top : 0;
    }
    int64_t count() const { return int64_t{1} << bits; }
    int64_t of(uint64_t key) const {
      return static_cast<int64_t>(std::min((std::max(key, base) - base) >> shift, (uint64_t{1} << bits) - 1));
    }
  };

  // The rows as they were given.
  struct Given {
    const T* pos;
    const T* x(int64_t i) const { return pos + i * D; }
    bool finite(int64_t i) const { return is_finite_row<D>(x(i)); }
    uint32_t row(int64_t i) const { return static_cast<uint32_t>(i); }
  };

  // Finite rows that were dealt out already.
  struct Dealt {
    Rows rows;
    const T* x(int64_t i) const { return rows.x + i * D; }
    bool finite(int64_t) const { return true; }
    uint32_t row(int64_t i) const { return rows.row[i]; }
  };

  // A sample is enough for a good choice nearly always, and spares a pass; it also misses lonely outliers.
  Digits sampled_digits(const T* pos, int64_t n) const {
    uint64_t first = 0, varying = 0;
    bool any = false;
    int64_t step = std::max<int64_t>(1, n / samples);
    for (int64_t i = 0; i < n; i += step) {
      if (!is_finite_row<D>(pos + i * D)) continue;
      uint64_t key = HalfKeys<D, T>::of(grid_, pos + i * D, false);
      if (!any) first = key;
      any = true;
      varying |= key ^ first;
    }
    return Digits(first, varying, n);
  }

  // Sorts what is in `from`; `to` is room for it.
  void sort_range(const Rows& from, const Rows& to, int64_t begin, int64_t end, bool low) {
    uint64_t varying = varying_bits(from, begin, end, low);
    if (varying == 0) return low ? write_ties(from, to, begin, end) : sort_range(from, to, begin, end, true);
    Digits digits(HalfKeys<D, T>::of(grid_, from.x + begin * D, low), varying, end - begin);
    std::vector<int64_t> ends = deal_out(Dealt{from}, to, begin, end, digits, low);
    for (const Range& large : sort_parts(to, begin, ends, low)) sort_range(to, from, large.begin, large.end, low);
  }

  uint64_t varying_bits(const Rows& from, int64_t begin, int64_t end, bool low) const {
    std::atomic<uint64_t> varying{0};
    uint64_t first = HalfKeys<D, T>::of(grid_, from.x + begin * D, low);
    parallel_.blocks(end - begin, 1 << 14, [&](int64_t first_row, int64_t last_row) {
      uint64_t bits = 0;
      for (int64_t i = begin + first_row; i < begin + last_row; ++i)
        bits |= HalfKeys<D, T>::of(grid_, from.x + i * D, low) ^ first;
      varying.fetch_or(bits, std::memory_order_relaxed);
    });
    return varying.load();
  }

  // Moves rows into the order of their digits, stable, those that are not finite behind them, and returns where each
  // digit ends.
  template <typename Source>
  std::vector<int64_t> deal_out(const Source& from, const Rows& to, int64_t begin, int64_t end, const Digits& digits,
                                bool low) const {
    int64_t n = end - begin, ways = digits.count() + 1;
    int64_t grain = std::max<int64_t>(1 << 14, (n + 4 * parallel_.threads() - 1) / (4 * parallel_.threads()));
    int64_t blocks = std::max<int64_t>(1, (n + grain - 1) / grain);
    std::vector<int64_t> places(static_cast<size_t>(blocks * ways), 0);
    // Kept, because a key takes longer to make than a digit to load.
    Scratch<uint16_t> way_of(n);
    parallel_.blocks(blocks, 1, [&](int64_t first, int64_t last) {
      HalfKeys<D, T> keys(grid_, low);
      for (int64_t block = first; block < last; ++block) {
        int64_t* count = places.data() + block * ways;
        int64_t start = begin + block * grain, stop = std::min(end, start + grain);
        uint16_t* way = way_of.get() + (start - begin);
        keys.each(from.x(start), stop - start, [&](int64_t i, uint64_t key, bool finite) {
          way[i] = static_cast<uint16_t>(finite || from.finite(start + i) ? digits.of(key) : digits.count());
          ++count[way[i]];
        });
      }
    });
    int64_t total = begin;
    for (int64_t way = 0; way < ways; ++way)
      for (int64_t block = 0; block < blocks; ++block)
        total += std::exchange(places[static_cast<size_t>(block * ways + way)], total);
    parallel_.blocks(blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) {
        // Copies on the stack: a store of a row could change anything else, as far as the compiler knows.
        int64_t* next = places.data() + block * ways;
        const uint16_t* way = way_of.get() - begin;
        const Source source = from;
        const Rows rows = to;
        int64_t stop = std::min(end, begin + (block + 1) * grain);
        for (int64_t i = begin + block * grain; i < stop; ++i) {
          int64_t ahead = next[way[std::min(i + prefetch_distance, stop - 1)]];
          __builtin_prefetch(rows.row + ahead, 1);
          __builtin_prefetch(rows.x + ahead * D, 1);
          rows.set(next[way[i]]++, source.row(i), source.x(i));
        }
      }
    });
    return {places.end() - ways, places.end() - 1};
  }

  // Sorts the parts that fit into a cache, and returns the others.
  std::vector<Range> sort_parts(const Rows& from, int64_t begin, const std::vector<int64_t>& ends, bool low) const {
    std::mutex mutex;
    std::vector<Range> large;
    int64_t parts = static_cast<int64_t>(ends.size());
    parallel_.blocks(
        parts, std::clamp<int64_t>(parts / (16 * parallel_.threads()), 1, 64), [&](int64_t first, int64_t last) {
          CacheSort<D, T> cache(grid_);
          for (int64_t i = first; i < last; ++i) {
            int64_t start = i > 0 ? ends[static_cast<size_t>(i - 1)] : begin, end = ends[static_cast<size_t>(i)];
            if (end - start <= largest_part) {
              cache.sort(from, out_, start, end - start, low);
            } else {
              std::lock_guard<std::mutex> lock(mutex);
              large.push_back({start, end});
            }
          }
        });
    return large;
  }

  // All keys are equal. from, to: as in sort_range.
  void write_ties(const Rows& from, const Rows& to, int64_t begin, int64_t end) const {
    std::vector<uint32_t> index(static_cast<size_t>(end - begin));
    std::iota(index.begin(), index.end(), 0u);
    order_ties(grid_, from.x + begin * D, index.data(), end - begin);
    if (from.row != out_.row) return write(from, begin, index);
    std::copy(from.row + begin, from.row + end, to.row + begin);
    std::copy(from.x + begin * D, from.x + end * D, to.x + begin * D);
    write(to, begin, index);
  }

  void write(const Rows& from, int64_t begin, const std::vector<uint32_t>& index) const {
    for (size_t i = 0; i < index.size(); ++i) {
      int64_t row = begin + index[i];
      out_.set(begin + static_cast<int64_t>(i), from.row[row], from.x + row * D);
    }
  }

  const Parallel& parallel_;
  const KeyGrid<D>& grid_;
  const Rows out_;
};

}  // namespace jztree
