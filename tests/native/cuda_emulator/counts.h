// How often warps come to the places that kernels mark with JZTREE_COUNT, and how many 32-byte sectors they ask for.
//
// Lanes of a warp that come to a place together cost one instruction each time. Nearly all of the marked places are
// those that all lanes come to together, or some of them, once; so a place counts as often as the lane that came to it
// most often.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace emulator {

class Counts {
 public:
  // All that ran since the library was loaded.
  static Counts& all() {
    static Counts counts;
    return counts;
  }

  // The number of a part, by its name.
  int part(const char* name) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto [at, added] = numbers_.emplace(name, static_cast<int>(totals_.size()));
    if (added) totals_.push_back(0);
    return at->second;
  }

  void add(const std::vector<int64_t>& counts) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < counts.size(); ++i) totals_[i] += counts[i];
  }

  // "name=count" for each part, one a line.
  std::string text() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::string lines;
    for (const auto& [name, number] : numbers_)
      lines += name + "=" + std::to_string(totals_[static_cast<size_t>(number)]) + "\n";
    return lines;
  }

  void reset() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::fill(totals_.begin(), totals_.end(), 0);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> numbers_;
  std::vector<int64_t> totals_;
};

// Of the lanes of one block at work.
class LaneCounts {
 public:
  static LaneCounts& current() {
    static thread_local LaneCounts counts;
    return counts;
  }

  void begin(int threads) { lanes_.assign(static_cast<size_t>(threads), {}); }

  void come(int thread, int part) {
    std::vector<int64_t>& counts = lanes_[static_cast<size_t>(thread)];
    if (counts.size() <= static_cast<size_t>(part)) counts.resize(static_cast<size_t>(part) + 1);
    ++counts[static_cast<size_t>(part)];
  }

  void end() {
    for (size_t first = 0; first < lanes_.size(); first += 32) {
      std::vector<int64_t> most;
      for (size_t i = first; i < std::min(first + 32, lanes_.size()); ++i) {
        most.resize(std::max(most.size(), lanes_[i].size()));
        for (size_t part = 0; part < lanes_[i].size(); ++part) most[part] = std::max(most[part], lanes_[i][part]);
      }
      Counts::all().add(most);
    }
  }

 private:
  std::vector<std::vector<int64_t>> lanes_;
};

}  // namespace emulator
