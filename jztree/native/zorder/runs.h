// Detects in one pass whether the rows consist of a few runs, each in z-order, and merges the runs. Sorted particles
// form one run, and particles received from other ranks form at most one run per rank.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "common/cpu/parallel.h"
#include "common/cpu/spares.h"
#include "common/partition.h"
#include "falling_rows.h"
#include "is_before.h"
#include "key_levels.h"

namespace jztree {

// Positions and their original rows.
template <int D, typename T>
struct RowArrays {
  uint32_t* row;
  T* x;

  void set(int64_t place, uint32_t from, const T* position) const {
    row[place] = from;
    std::memcpy(x + place * D, position, D * sizeof(T));
  }

  // Rows [begin, end) in their original order.
  void copy(const T* positions, int64_t begin, int64_t end) const {
    std::iota(row + begin, row + end, static_cast<uint32_t>(begin));
    std::copy(positions + begin * D, positions + end * D, x + begin * D);
  }
};

// The first rows of the runs, if the number of runs is small. To find them takes a quarter of the time of a sort.
template <int D, typename T>
class FewRuns {
 public:
  // sample: first halves of the keys of some of the n rows, in order. If there are many runs, the sample nearly always
  // shows it, and the search is skipped. Non-finite rows are in no run.
  FewRuns(const Parallel& parallel, const KeyGrid<D>& grid, const T* pos, int64_t n,
          const std::vector<uint64_t>& sample) {
    size_t falls = 0, ties = 0;
    for (size_t i = 1; i < sample.size(); ++i) {
      falls += sample[i] < sample[i - 1];
      ties += sample[i] == sample[i - 1];
    }
    // A merge compares rows with equal keys pair by pair, which is slow if most keys are equal.
    if (falls == 0 || (falls < max_runs && ties < sample.size() / 2)) find(parallel, grid, pos, n);
  }

  bool found() const { return !begins_.empty(); }
  // The first row of each run, followed by the number of rows.
  const std::vector<int64_t>& begins() const { return begins_; }

 private:
  // The merge of this number of runs takes about half the time of a sort.
  static constexpr size_t max_runs = 16;

  void find(const Parallel& parallel, const KeyGrid<D>& grid, const T* pos, int64_t n) {
    std::mutex mutex;
    std::vector<int64_t> begins{0};
    std::atomic<bool> few{true};
    parallel.blocks(n, 1 << 14, [&](int64_t begin, int64_t end) {
      if (!few.load(std::memory_order_relaxed)) return;
      std::vector<int64_t> here;
      bool finite_rows = FallingRows<D, T>(grid, pos).each(begin, end, [&](int64_t row) {
        if (here.size() < max_runs) here.push_back(row);
      });
      if (here.empty() && finite_rows) return;
      std::lock_guard<std::mutex> lock(mutex);
      begins.insert(begins.end(), here.begin(), here.end());
      if (begins.size() > max_runs || !finite_rows) few.store(false, std::memory_order_relaxed);
    });
    if (!few.load()) return;
    std::sort(begins.begin(), begins.end());
    begins.push_back(n);
    begins_ = std::move(begins);
  }

  std::vector<int64_t> begins_;
};

// Merges runs two by two, in parts that fit into a core's cache. A part consists of the rows between two keys.
template <int D, typename T>
class RunMerge {
 public:
  // begins, sample: see FewRuns.
  RunMerge(const Parallel& parallel, const KeyGrid<D>& grid, const T* pos, const std::vector<int64_t>& begins,
           std::vector<uint64_t> sample, const RowArrays<D, T>& out)
      : grid_(grid), pos_(pos), out_(out), cuts_{Cut(begins.begin(), begins.end() - 1)} {
    cut(begins, std::move(sample));
    auto merge_some = [&](Part& part, int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) merge(static_cast<size_t>(i), part);
    };
    Spares<Part>().blocks(parallel, static_cast<int64_t>(cuts_.size()) - 1, 1, [] { return Part(); }, merge_some);
  }

 private:
  using Cut = std::vector<int64_t>;  // one row of each run
  struct Item {
    uint64_t key;
    uint32_t row;

    Item() {}  // so that a growing vector of items is not filled with zeros
    Item(uint64_t k, uint32_t r) : key(k), row(r) {}
  };
  // The items merged by one thread. ends: the end of each run in `items`.
  struct Part {
    std::vector<Item> items, others;
    std::vector<size_t> ends;
  };
  static constexpr int64_t part_rows = 1 << 12;  // twice 64 KiB of items

  // Cut all runs at keys of the sample. Rows with the same first half of the key stay together.
  void cut(const std::vector<int64_t>& begins, std::vector<uint64_t> sample) {
    std::sort(sample.begin(), sample.end());
    size_t parts = std::clamp<size_t>(static_cast<size_t>(begins.back() / part_rows), 1, sample.size());
    for (size_t i = 1; i < parts; ++i) {
      Cut next;
      for (size_t run = 0; run + 1 < begins.size(); ++run)
        next.push_back(first_from(sample[i * sample.size() / parts], cuts_.back()[run], begins[run + 1]));
      cuts_.push_back(std::move(next));
    }
    cuts_.emplace_back(begins.begin() + 1, begins.end());
  }

  // The first of the rows [first, last) whose key is not below this one.
  int64_t first_from(uint64_t key, int64_t first, int64_t last) const {
    return partition_point(first, last, [&](int64_t row) { return OrderWords<D>::at(grid_, pos_ + row * D, 0) < key; });
  }

  void merge(size_t number, Part& part) const {
    int64_t place = 0;
    part.items.clear();
    part.ends.clear();
    for (size_t run = 0; run < cuts_[0].size(); ++run) {
      int64_t first = cuts_[number][run];
      place += first - cuts_[0][run];
      load(first, cuts_[number + 1][run], part);
    }
    while (part.ends.size() > 1) merge_twos(part);
    for (const Item& item : part.items) out_.set(place++, item.row, pos_ + int64_t{item.row} * D);
  }

  void load(int64_t first, int64_t last, Part& part) const {
    if (first == last) return;
    size_t begin = part.items.size();
    part.items.resize(begin + static_cast<size_t>(last - first));
    Item* items = part.items.data() + begin;
    KeyLevels<D, T>(grid_).each(pos_ + first * D, last - first, 0, [&](int64_t i, uint64_t key, bool) {
      items[i] = Item(key, static_cast<uint32_t>(first + i));
    });
    part.ends.push_back(part.items.size());
  }

  // Merge the first run with the second, the third with the fourth, and so on.
  void merge_twos(Part& part) const {
    part.others.resize(part.items.size());
    const Item* from = part.items.data();
    Item* to = part.others.data();
    std::vector<size_t>& ends = part.ends;
    size_t merged = 0, begin = 0;
    for (size_t run = 0; run < ends.size(); run += 2) {
      size_t end = ends[std::min(run + 1, ends.size() - 1)];
      merge_two(from + begin, from + ends[run], from + end, to + begin);
      ends[merged++] = begin = end;
    }
    ends.resize(merged);
    part.items.swap(part.others);
  }

  // Whether an item of the second of two runs sorts before one of the first.
  bool is_earlier(const Item& second, const Item& first) const {
    if (second.key != first.key) return second.key < first.key;
    return is_before<D>(grid_, pos_ + int64_t{second.row} * D, pos_ + int64_t{first.row} * D);
  }

  // Two runs that are being merged.
  struct Merge {
    const Item *a, *a_end, *b, *b_end;
    Item* to;

    bool both() const { return a < a_end && b < b_end; }
    // The result of the comparison is unpredictable, so the choice uses arithmetic instead of a branch.
    void step(const RunMerge& of) {
      ptrdiff_t second = of.is_earlier(*b, *a);
      *to++ = a[-second & (b - a)];
      b += second;
      a += 1 - second;
    }
    void finish(const RunMerge& of) {
      while (both()) step(of);
      std::copy(b, b_end, std::copy(a, a_end, to));
    }
  };

  // Merge both halves of the output at the same time: each step depends on the previous step of its half, but not on
  // the other half.
  void merge_two(const Item* a, const Item* b, const Item* end, Item* to) const {
    const ptrdiff_t half = (end - a) / 2, of_a = first_of(a, b - a, b, end - b, half), of_b = half - of_a;
    Merge low{a, a + of_a, b, b + of_b, to}, high{a + of_a, b, b + of_b, end, to + half};
    while (low.both() && high.both()) {
      low.step(*this);
      high.step(*this);
    }
    low.finish(*this);
    high.finish(*this);
  }

  // The number of items of the first run among the first `number` items of both runs together.
  ptrdiff_t first_of(const Item* a, ptrdiff_t of_a, const Item* b, ptrdiff_t of_b, ptrdiff_t number) const {
    ptrdiff_t begin = std::max<ptrdiff_t>(0, number - of_b), end = std::min(number, of_a);
    while (begin < end) {
      const ptrdiff_t i = (begin + end) / 2, j = number - i;
      const bool from_first = !is_earlier(b[j - 1], a[i]);
      (from_first ? begin : end) = from_first ? i + 1 : i;
    }
    return begin;
  }

  const KeyGrid<D>& grid_;
  const T* pos_;
  const RowArrays<D, T> out_;
  std::vector<Cut> cuts_;
};

}  // namespace jztree
