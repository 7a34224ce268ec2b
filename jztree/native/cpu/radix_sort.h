// Stable parallel sort of (64-bit key, row) pairs.
//
// Least-significant-digit radix passes over the 33 highest bits in which the keys differ, then the runs of keys that
// are still equal in those bits: short runs by comparison, each on one thread; long ones by the same radix passes over
// their next bits, on all threads. So n keys need three passes if they are spread evenly, and an outlier that shares no
// high bit with the rest costs three more, not a sort of everything by comparison.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "../common/morton.h"
#include "parallel.h"

namespace jztree {

// LowKey: row -> uint64_t, the second half of the key, asked for only where first halves are equal.
// Ties: (rows, count) -> void, may reorder rows whose keys are equal in both halves; called for `shared_key_run`
// of them and more.
template <typename LowKey, typename Ties>
class KeySort {
 public:
  // Sorts keys[0..n) and rows[0..n) by (key, low key, place). rows need not be in order at the start.
  KeySort(const Parallel& parallel, const LowKey& low_key, const Ties& ties, uint64_t* keys, uint32_t* rows, int64_t n)
      : parallel_(parallel),
        low_key_(low_key),
        ties_(ties),
        keys_(keys),
        rows_(rows),
        other_keys_(new uint64_t[static_cast<size_t>(n)]),
        other_rows_(new uint32_t[static_cast<size_t>(n)]) {
    sort_range(0, n, false);
  }

 private:
  static constexpr int digit_bits = 11;
  static constexpr int digits = 1 << digit_bits;
  static constexpr int passes = 3;
  // Runs shorter than this are sorted by comparison on one thread.
  static constexpr int64_t long_run = 1 << 15;

  struct Run {
    int64_t begin, end;
  };
  struct Entry {
    uint64_t high, low;
    uint32_t row;
  };

  // low: the keys in this range hold second halves, because the first are all equal.
  void sort_range(int64_t begin, int64_t end, bool low) {
    uint64_t varying = varying_bits(begin, end);
    if (varying == 0) {
      if (low) return break_ties(begin, end);
      load_low_keys(begin, end);
      sort_range(begin, end, true);
      return;
    }
    int top = 63 - __builtin_clzll(varying);
    int shift = std::max(0, top + 1 - passes * digit_bits);
    radix_passes(begin, end, shift, top);
    for (const Run& run : sort_short_runs(begin, end, shift, low)) sort_range(run.begin, run.end, low);
  }

  void break_ties(int64_t begin, int64_t end) {
    if (end - begin >= shared_key_run) ties_(rows_ + begin, end - begin);
  }

  uint64_t varying_bits(int64_t begin, int64_t end) const {
    std::mutex mutex;
    uint64_t varying = 0, first = keys_[begin];
    parallel_.blocks(end - begin, 1 << 16, [&](int64_t from, int64_t to) {
      uint64_t bits = 0;
      for (int64_t i = begin + from; i < begin + to; ++i) bits |= keys_[i] ^ first;
      std::lock_guard<std::mutex> lock(mutex);
      varying |= bits;
    });
    return varying;
  }

  void load_low_keys(int64_t begin, int64_t end) {
    parallel_.blocks(end - begin, 1 << 14, [&](int64_t from, int64_t to) {
      for (int64_t i = begin + from; i < begin + to; ++i) keys_[i] = low_key_(rows_[i]);
    });
  }

  // Sorts by bits [shift, top], stable. The result ends in keys_ and rows_.
  void radix_passes(int64_t begin, int64_t end, int shift, int top) {
    uint64_t *from_keys = keys_ + begin, *to_keys = other_keys_.get() + begin;
    uint32_t *from_rows = rows_ + begin, *to_rows = other_rows_.get() + begin;
    int64_t n = end - begin;
    for (int low_bit = shift; low_bit <= top; low_bit += digit_bits) {
      int bits = std::min(digit_bits, top + 1 - low_bit);
      radix_pass(from_keys, from_rows, to_keys, to_rows, n, low_bit, (uint64_t{1} << bits) - 1);
      std::swap(from_keys, to_keys);
      std::swap(from_rows, to_rows);
    }
    if (from_keys == keys_ + begin) return;
    parallel_.blocks(n, 1 << 16, [&](int64_t a, int64_t b) {
      std::memcpy(to_keys + a, from_keys + a, static_cast<size_t>(b - a) * sizeof(uint64_t));
      std::memcpy(to_rows + a, from_rows + a, static_cast<size_t>(b - a) * sizeof(uint32_t));
    });
  }

  void radix_pass(const uint64_t* from_keys, const uint32_t* from_rows, uint64_t* to_keys, uint32_t* to_rows, int64_t n,
                  int low_bit, uint64_t mask) const {
    int64_t grain = std::max<int64_t>(1 << 14, (n + 4 * parallel_.threads() - 1) / (4 * parallel_.threads()));
    int64_t blocks = (n + grain - 1) / grain;
    std::vector<int64_t> starts(static_cast<size_t>(blocks) * digits, 0);
    parallel_.blocks(blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) {
        int64_t* count = starts.data() + block * digits;
        for (int64_t i = block * grain; i < std::min(n, (block + 1) * grain); ++i)
          ++count[(from_keys[i] >> low_bit) & mask];
      }
    });
    int64_t total = 0;
    for (int64_t digit = 0; digit < digits; ++digit)
      for (int64_t block = 0; block < blocks; ++block)
        total += std::exchange(starts[static_cast<size_t>(block * digits + digit)], total);
    parallel_.blocks(blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) {
        int64_t* next = starts.data() + block * digits;
        for (int64_t i = block * grain; i < std::min(n, (block + 1) * grain); ++i) {
          int64_t place = next[(from_keys[i] >> low_bit) & mask]++;
          to_keys[place] = from_keys[i];
          to_rows[place] = from_rows[i];
        }
      }
    });
  }

  // Sorts the short runs of keys that agree above `shift`, each on one thread, and returns the long ones.
  std::vector<Run> sort_short_runs(int64_t begin, int64_t end, int shift, bool low) {
    std::mutex mutex;
    std::vector<Run> long_runs;
    auto same = [&](int64_t a, int64_t b) { return (keys_[a] >> shift) == (keys_[b] >> shift); };
    parallel_.blocks(end - begin, 1 << 14, [&](int64_t from, int64_t to) {
      std::vector<Entry> work;
      int64_t i = begin + from, stop = begin + to;
      // A run belongs to the block it starts in.
      if (i > begin)
        while (i < stop && same(i, i - 1)) ++i;
      while (i < stop) {
        int64_t j = i + 1;
        while (j < end && same(i, j)) ++j;
        if (j - i >= long_run) {
          std::lock_guard<std::mutex> lock(mutex);
          long_runs.push_back({i, j});
        } else if (j - i > 1) {
          sort_run(i, j, low, work);
        }
        i = j;
      }
    });
    return long_runs;
  }

  void sort_run(int64_t begin, int64_t end, bool low, std::vector<Entry>& work) {
    work.clear();
    for (int64_t i = begin; i < end; ++i) work.push_back({keys_[i], low ? 0 : low_key_(rows_[i]), rows_[i]});
    // Equal keys are found in the order of their rows, but std::sort would not keep it.
    std::sort(work.begin(), work.end(), [](const Entry& a, const Entry& b) {
      return a.high != b.high ? a.high < b.high : a.low != b.low ? a.low < b.low : a.row < b.row;
    });
    // The keys stay as they are: nobody needs them any more, but a neighbouring block may be reading their high bits.
    for (int64_t i = begin; i < end; ++i) rows_[i] = work[static_cast<size_t>(i - begin)].row;
    for (int64_t i = begin; i < end;) {
      const Entry& first = work[static_cast<size_t>(i - begin)];
      int64_t j = i + 1;
      while (j < end && work[static_cast<size_t>(j - begin)].high == first.high &&
             work[static_cast<size_t>(j - begin)].low == first.low)
        ++j;
      break_ties(i, j);
      i = j;
    }
  }

  const Parallel& parallel_;
  const LowKey& low_key_;
  const Ties& ties_;
  uint64_t* keys_;
  uint32_t* rows_;
  std::unique_ptr<uint64_t[]> other_keys_;
  std::unique_ptr<uint32_t[]> other_rows_;
};

}  // namespace jztree
