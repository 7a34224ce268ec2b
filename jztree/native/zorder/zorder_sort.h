// Stable parallel sort of positions by Morton key.
//
// All threads distribute the rows by digits of their keys into parts that fit into a core's cache. One thread then
// sorts each part. Positions move together with their row numbers. Keys are recomputed when needed, which is faster
// than storing and loading them. So the sort passes through memory three times for any number of rows, and no pass
// makes random accesses outside the cache. Parts that are too large are distributed again.
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

#include "cache_sort.h"
#include "common/cpu/memory.h"
#include "common/cpu/parallel.h"
#include "common/cpu/spares.h"
#include "common/morton.h"
#include "common/scale.h"
#include "digits.h"
#include "key_levels.h"
#include "runs.h"

namespace jztree {

// Sorts rows that fit into a core's cache, on one thread; used for one part after another.
template <int D, typename T>
class PartSort {
 public:
  explicit PartSort(const KeyGrid<D>& grid) : grid_(grid), keys_(grid) {}

  // Write n rows, starting at `place`, in order to the same place of `to`, which may be `from`. level: the rows agree
  // at all levels before this one.
  void sort(const RowArrays<D, T>& from, const RowArrays<D, T>& to, int64_t place, int64_t n, int level) {
    rows_.assign(from.row + place, from.row + place + n);
    pos_.assign(from.x + place * D, from.x + (place + n) * D);
    index_.resize(static_cast<size_t>(n));
    if (level < Levels::of_keys) {
      order_by_keys(n, level);
    } else {
      std::iota(index_.begin(), index_.end(), 0u);
      order_crowd(index_.data(), n, level);
    }
    for (int64_t i = 0; i < n; ++i) {
      size_t index = index_[static_cast<size_t>(i)];
      to.set(place + i, rows_[index], pos_.data() + index * D);
    }
  }

 private:
  using Levels = KeyLevels<D, T>;
  static constexpr int64_t insertion_limit = 32;

  const T* at(uint32_t index) const { return pos_.data() + size_t{index} * D; }

  void order_by_keys(int64_t n, int level) {
    CacheSort::Item* items = cache_.items(n);
    keys_.each(pos_.data(), n, level,
               [&](int64_t i, uint64_t key, bool) { items[i] = {key, static_cast<uint32_t>(i)}; });
    auto second_key = [this](uint32_t i) { return Levels::at(grid_, at(i), 1); };
    std::vector<CacheSort::Range> ties = cache_.sort(n, level == 1, second_key);
    for (int64_t i = 0; i < n; ++i) index_[static_cast<size_t>(i)] = items[i].index;
    for (const CacheSort::Range& tied : ties)
      order_crowd(index_.data() + tied.begin, tied.end - tied.begin, Levels::of_keys);
  }

  // Sort rows of equal key by their bits, starting at a level.
  void order_crowd(uint32_t* index, int64_t count, int level) {
    auto bits = [this](uint32_t i) { return BitOrder<D>(grid_, at(i)); };
    if (count <= insertion_limit) return order_few(index, count);
    // Equal points, if there are any, are usually many and already in order.
    if (std::all_of(index, index + count, [&, first = bits(index[0])](uint32_t i) { return bits(i) == first; })) return;
    CacheSort::Item* items = cache_.items(count);
    for (int64_t i = 0; i < count; ++i) items[i] = {Levels::at(grid_, at(index[i]), level), index[i]};
    cache_.sort(count, true, nullptr);
    std::vector<CacheSort::Range> runs;
    for (int64_t i = 0, j; i < count; i = j) {
      for (j = i; j < count && items[j].key == items[i].key; ++j) index[j] = items[j].index;
      if (j - i > 1) runs.push_back({i, j});
    }
    for (const CacheSort::Range& run : runs) order_crowd(index + run.begin, run.end - run.begin, level + 1);
  }

  void order_few(uint32_t* index, int64_t count) const {
    for (int64_t i = 1; i < count; ++i) {
      uint32_t item = index[i];
      BitOrder<D> bits(grid_, at(item));
      int64_t place = i;
      for (; place > 0 && bits < BitOrder<D>(grid_, at(index[place - 1])); --place) index[place] = index[place - 1];
      index[place] = item;
    }
  }

  const KeyGrid<D>& grid_;
  Levels keys_;
  CacheSort cache_;
  std::vector<uint32_t> rows_, index_;
  std::vector<T> pos_;
};

template <int D, typename T>
class ZSort {
 public:
  using Rows = RowArrays<D, T>;
  using Levels = KeyLevels<D, T>;

  // Sort the first n rows of pos by (key, place). Non-finite rows follow the others, in their original order.
  ZSort(const Parallel& parallel, const KeyGrid<D>& grid, const T* pos, int64_t n, const Rows& out)
      : parallel_(parallel),
        grid_(grid),
        out_(out),
        largest_(std::clamp(n / (4 * parallel.threads()), Digits::one_thread, largest_part)) {
    const Source given{pos, nullptr};
    std::vector<uint64_t> sample = sample_keys(given, 0, n, 0);
    if (merge_runs(pos, n, sample)) return;
    std::vector<int64_t> ends = deal_out(given, out, 0, n, first_digits(std::move(sample), n), 0);
    std::vector<Range> large = sort_parts(out, 0, ends, 0);
    if (large.empty()) return;
    Scratch<uint32_t> row(n);
    Scratch<T> x(n * D);
    for (const Range& range : large) sort_range(out, {row.get(), x.get()}, range.begin, range.end, 0);
  }

 private:
  using Range = CacheSort::Range;
  static constexpr int64_t largest_part = 1 << 17;  // sorted in 4 MiB, the cache size of a core
  static constexpr int64_t samples = 1 << 9;

  // Rows to distribute. row: null for the input rows, which are in their original order.
  struct Source {
    const T* pos;
    const uint32_t* rows;
    const T* x(int64_t i) const { return pos + i * D; }
    bool finite(int64_t i) const { return is_finite_row<D>(x(i)); }
    uint32_t row(int64_t i) const { return rows ? rows[i] : static_cast<uint32_t>(i); }
  };

  // Handle input that is already in order, or consists of a few sorted runs. Returns false otherwise.
  bool merge_runs(const T* pos, int64_t n, const std::vector<uint64_t>& sample) const {
    FewRuns<D, T> runs(parallel_, grid_, pos, n, sample);
    if (!runs.found()) return false;
    if (runs.begins().size() > 2) {
      RunMerge<D, T>(parallel_, grid_, pos, runs.begins(), sample, out_);
    } else {
      parallel_.blocks(n, 1 << 14, [&](int64_t begin, int64_t end) { out_.copy(pos, begin, end); });
    }
    return true;
  }

  std::vector<uint64_t> sample_keys(const Source& from, int64_t begin, int64_t end, int level) const {
    std::vector<uint64_t> keys;
    int64_t step = std::max<int64_t>(1, (end - begin) / samples);
    for (int64_t i = begin; i < end; i += step)
      if (from.finite(i)) keys.push_back(Levels::at(grid_, from.x(i), level));
    return keys;
  }

  // The bits that differ among the keys of a sample nearly always include all bits that differ, which saves a pass.
  Digits first_digits(std::vector<uint64_t> sample, int64_t n) const {
    if (n <= Digits::one_thread) return Digits({}, 0, n, largest_);
    uint64_t varying = 0;
    for (uint64_t key : sample) varying |= key ^ sample[0];
    return Digits(std::move(sample), varying, n, largest_);
  }

  // Sort the rows in `from`, with `to` as work space. level: the first level at which rows may differ.
  void sort_range(const Rows& from, const Rows& to, int64_t begin, int64_t end, int level) {
    uint64_t varying = varying_bits(from, begin, end, level);
    while (varying == 0) {
      if (++level == Levels::count(grid_) || (level == Levels::of_keys && all_at_one_point(from, begin, end))) {
        if (from.row != out_.row) copy(from, out_, begin, end);
        return;
      }
      varying = varying_bits(from, begin, end, level);
    }
    Digits digits(sample_keys(Source{from.x, from.row}, begin, end, level), varying, end - begin, largest_);
    std::vector<int64_t> ends = deal_out(Source{from.x, from.row}, to, begin, end, digits, level);
    for (const Range& large : sort_parts(to, begin, ends, level)) sort_range(to, from, large.begin, large.end, level);
  }

  uint64_t varying_bits(const Rows& from, int64_t begin, int64_t end, int level) const {
    std::atomic<uint64_t> varying{0};
    uint64_t first = Levels::at(grid_, from.x + begin * D, level);
    parallel_.blocks(end - begin, 1 << 14, [&](int64_t first_row, int64_t last_row) {
      uint64_t bits = 0;
      Levels(grid_).each(from.x + (begin + first_row) * D, last_row - first_row, level,
                         [&](int64_t, uint64_t key, bool) { bits |= key ^ first; });
      varying.fetch_or(bits, std::memory_order_relaxed);
    });
    return varying.load();
  }

  // The rows [begin, end) during distribution, in blocks of `grain`.
  struct Deal {
    int64_t begin, end, grain, blocks;
    int64_t ways;
    Scratch<int64_t> places;  // [block, way], number of rows; later the position of the next row
    Scratch<uint16_t> way;    // of each row; stored, because loading it is faster than making a key

    Deal(int64_t first, int64_t last, int64_t num_ways, int threads)
        : begin(first),
          end(last),
          grain(std::max<int64_t>(1 << 12, (last - first + 4 * threads - 1) / (4 * threads))),
          blocks(std::max<int64_t>(1, (last - first + grain - 1) / grain)),
          ways(num_ways),
          places(blocks * ways),
          way(last - first) {}

    int64_t first_row(int64_t block) const { return std::min(end, begin + block * grain); }
    int64_t* places_of(int64_t block) { return places.get() + block * ways; }
    uint16_t* ways_of(int64_t block) { return way.get() + (first_row(block) - begin); }

    // Turn the numbers of rows into the position of the first row of each block and way. With many threads, the table
    // has many blocks, so threads share its columns, and each reads its part of the rows.
    void find_places(const Parallel& parallel) {
      std::vector<int64_t> next(static_cast<size_t>(ways), 0);
      auto each_number = [&](const auto& work) {
        parallel.blocks(ways, std::max<int64_t>(64, (1 << 16) / blocks), [&](int64_t first, int64_t last) {
          for (int64_t block = 0; block < blocks; ++block)
            for (int64_t i = first; i < last; ++i) work(next[static_cast<size_t>(i)], places_of(block)[i]);
        });
      };
      each_number([](int64_t& sum, int64_t number) { sum += number; });
      int64_t total = begin;
      for (int64_t& number : next) total += std::exchange(number, total);
      each_number([](int64_t& place, int64_t& number) { place += std::exchange(number, place); });
    }
  };

  // Move rows into the order of their digits (stable), with non-finite rows last. Returns the end of each digit.
  std::vector<int64_t> deal_out(const Source& from, const Rows& to, int64_t begin, int64_t end, const Digits& digits,
                                int level) const {
    Deal deal(begin, end, digits.count() + 1, parallel_.threads());
    count_digits(from, digits, level, deal);
    deal.find_places(parallel_);
    move_rows(from, to, deal);
    // The last block has the last rows of each digit.
    const int64_t* ends_of_ways = deal.places_of(deal.blocks - 1);
    return {ends_of_ways, ends_of_ways + deal.ways - 1};
  }

  void count_digits(const Source& from, const Digits& digits, int level, Deal& deal) const {
    parallel_.blocks(deal.blocks, 1, [&](int64_t first, int64_t last) {
      Levels keys(grid_);
      for (int64_t block = first; block < last; ++block) {
        int64_t* count = deal.places_of(block);
        std::fill_n(count, deal.ways, 0);
        uint16_t* way = deal.ways_of(block);
        int64_t start = deal.first_row(block);
        int64_t rows = deal.first_row(block + 1) - start;
        auto count_row = [&](int64_t i, uint64_t key, bool finite) {
          way[i] = static_cast<uint16_t>(finite || from.finite(start + i) ? digits.of(key) : digits.count());
          ++count[way[i]];
        };
        if (digits.bits() > 0) {
          keys.each(from.x(start), rows, level, count_row);
        } else {
          for (int64_t i = 0; i < rows; ++i) count_row(i, 0, false);
        }
      }
    });
  }

  void move_rows(const Source& from, const Rows& to, Deal& deal) const {
    parallel_.blocks(deal.blocks, 1, [&](int64_t first, int64_t last) {
      // Copies on the stack: otherwise the compiler must assume that storing a row could change them.
      const Source source = from;
      const Rows rows = to;
      for (int64_t block = first; block < last; ++block) {
        int64_t* next = deal.places_of(block);
        const uint16_t* way = deal.ways_of(block);
        int64_t start = deal.first_row(block), count = deal.first_row(block + 1) - start;
        for (int64_t i = 0; i < count; ++i) {
          int64_t ahead = next[way[std::min(i + prefetch_distance, count - 1)]];
          __builtin_prefetch(rows.row + ahead, 1);
          __builtin_prefetch(rows.x + ahead * D, 1);
          rows.set(next[way[i]]++, source.row(start + i), source.x(start + i));
        }
      }
    });
  }

  // Sort the parts that fit into a cache, and return the others.
  std::vector<Range> sort_parts(const Rows& from, int64_t begin, const std::vector<int64_t>& ends, int level) const {
    std::mutex mutex;
    std::vector<Range> large;
    int64_t parts = static_cast<int64_t>(ends.size());
    int64_t grain = std::clamp<int64_t>(parts / (16 * parallel_.threads()), 1, 64);
    using Sort = PartSort<D, T>;
    auto sort_some = [&](Sort& part_sort, int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        int64_t start = i > 0 ? ends[static_cast<size_t>(i - 1)] : begin, end = ends[static_cast<size_t>(i)];
        if (end - start <= largest_) {
          part_sort.sort(from, out_, start, end - start, level);
        } else {
          std::lock_guard<std::mutex> lock(mutex);
          large.push_back({start, end});
        }
      }
    };
    Spares<Sort>().blocks(parallel_, parts, grain, [&] { return Sort(grid_); }, sort_some);
    return large;
  }

  bool all_at_one_point(const Rows& from, int64_t begin, int64_t end) const {
    std::atomic<bool> differ{false};
    BitOrder<D> first(grid_, from.x + begin * D);
    parallel_.blocks(end - begin, 1 << 14, [&](int64_t first_row, int64_t last_row) {
      bool equal = true;
      for (int64_t i = begin + first_row; i < begin + last_row; ++i)
        equal &= BitOrder<D>(grid_, from.x + i * D) == first;
      if (!equal) differ.store(true, std::memory_order_relaxed);
    });
    return !differ.load();
  }

  void copy(const Rows& from, const Rows& to, int64_t begin, int64_t end) const {
    parallel_.blocks(end - begin, 1 << 14, [&](int64_t first, int64_t last) {
      std::copy(from.row + begin + first, from.row + begin + last, to.row + begin + first);
      std::copy(from.x + (begin + first) * D, from.x + (begin + last) * D, to.x + (begin + first) * D);
    });
  }

  const Parallel& parallel_;
  const KeyGrid<D>& grid_;
  const Rows out_;
  const int64_t largest_;  // larger parts are distributed again, by all threads
};

}  // namespace jztree
