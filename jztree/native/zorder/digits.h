// Distributes rows by their keys into parts of similar size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cache_sort.h"

namespace jztree {

// How to distribute rows by one level of their keys.
//
// Usually, bits of the key select the part: the range [base, base + 2^(shift + bits)) is divided evenly, and keys
// outside it go to the first or the last part. If this would put too many rows into one part, the limits of the parts
// are keys from a sample: W. D. Frazer & A. C. McKellar (1970), "Samplesort". The order of rows is the same for any
// choice.
class Digits {
 public:
  // sample: keys of some of n rows. varying: the bits in which keys differ. largest: the largest acceptable number of
  // rows per digit.
  Digits(std::vector<uint64_t> sample, uint64_t varying, int64_t n, int64_t largest) {
    int top = varying == 0 ? 0 : bit_length(varying);
    bits_ = std::min({top, most_bits, n > one_thread ? bit_length(static_cast<uint64_t>(n / part)) : 0});
    if (bits_ == 0) return;
    shift_ = top - bits_;
    base_ = top < 64 ? sample[0] >> top << top : 0;
    if (leaves_together(sample, n, largest)) split(std::move(sample), top);
  }

  // Fewer rows are not distributed, because the threads would take longer to start than they save.
  static constexpr int64_t one_thread = 1 << 13;

  int bits() const { return bits_; }
  int64_t count() const { return int64_t{1} << bits_; }
  int64_t of(uint64_t key) const {
    if (splitters_.empty()) {
      uint64_t digit = (std::max(key, base_) - base_) >> shift_;
      return static_cast<int64_t>(std::min(digit, (uint64_t{1} << bits_) - 1));
    }
    size_t digit = 0;
    for (size_t step = size_t{1} << bits_ >> 1; step > 0; step >>= 1)
      digit += splitters_[digit + step - 1] <= key ? step : 0;
    return static_cast<int64_t>(digit);
  }

 private:
  static constexpr int64_t part = 1 << 10;  // target number of rows per digit
  static constexpr int most_bits = 11, most_split_bits = 8;

  bool leaves_together(const std::vector<uint64_t>& sample, int64_t n, int64_t largest) const {
    int64_t counts[1 << most_bits] = {}, most = 0;
    for (uint64_t key : sample) most = std::max(most, ++counts[of(key)]);
    // A few keys may coincide by chance.
    return most > 8 && n / static_cast<int64_t>(sample.size()) * most > largest;
  }

  void split(std::vector<uint64_t> sample, int top) {
    std::sort(sample.begin(), sample.end());
    bits_ = std::min(bits_, most_split_bits);
    size_t ways = size_t{1} << bits_;
    for (size_t i = 1; i < ways; ++i) splitters_.push_back(sample[i * sample.size() / ways]);
    // The sample may have only one key. Rows differ in the highest varying bit, so this splitter separates them.
    uint64_t half = ((sample[0] >> (top - 1)) | 1) << (top - 1);
    auto place = std::lower_bound(splitters_.begin(), splitters_.end() - 1, half);
    *place = half;
  }

  uint64_t base_ = 0;
  int shift_ = 0, bits_ = 0;
  std::vector<uint64_t> splitters_;
};

}  // namespace jztree
