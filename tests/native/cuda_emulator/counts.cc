#include "counts.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace emulator {
namespace {

constexpr size_t lanes_a_warp = 32, sector_bytes = 32;

}  // namespace

Counts& Counts::all() {
  static Counts counts;
  return counts;
}

int Counts::part(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto [at, added] = numbers_.emplace(name, static_cast<int>(totals_.size()));
  if (added) totals_.push_back(0);
  return at->second;
}

void Counts::add(const std::vector<int64_t>& counts) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < counts.size(); ++i) totals_[i] += counts[i];
}

void Counts::add(const std::string& name, int64_t count) {
  auto number = static_cast<size_t>(part(name));
  std::lock_guard<std::mutex> lock(mutex_);
  totals_[number] += count;
}

std::string Counts::text() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::string lines;
  for (const auto& [name, number] : numbers_)
    lines += name + "=" + std::to_string(totals_[static_cast<size_t>(number)]) + "\n";
  return lines;
}

void Counts::reset() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::fill(totals_.begin(), totals_.end(), 0);
}

void LaneCounts::begin(int threads, const char* handler) {
  lanes_.assign(static_cast<size_t>(threads), {});
  handler_ = handler;
}

void LaneCounts::come(int thread, int part) {
  std::vector<int64_t>& counts = lanes_[static_cast<size_t>(thread)].times;
  if (counts.size() <= static_cast<size_t>(part)) counts.resize(static_cast<size_t>(part) + 1);
  ++counts[static_cast<size_t>(part)];
}

void LaneCounts::together(int warp) {
  size_t first = static_cast<size_t>(warp) * lanes_a_warp, end = std::min(first + lanes_a_warp, lanes_.size());
  std::set<std::tuple<bool, uintptr_t, int, size_t>> sectors;
  for (size_t i = first; i < end; ++i) {
    std::map<uintptr_t, int> times;
    for (const Ask& ask : lanes_[i].asks) {
      int time = times[ask.code]++;
      for (size_t sector = ask.at / sector_bytes; sector <= (ask.at + ask.bytes - 1) / sector_bytes; ++sector)
        sectors.insert({ask.writes, ask.code, time, sector});
    }
    lanes_[i].asks.clear();
  }
  if (sectors.empty()) return;
  auto reads = std::distance(sectors.begin(), sectors.lower_bound({true, 0, 0, 0}));
  add_sectors(handler_, static_cast<size_t>(reads) * sector_bytes,
              (sectors.size() - static_cast<size_t>(reads)) * sector_bytes);
}

void LaneCounts::end() {
  for (size_t first = 0; first < lanes_.size(); first += lanes_a_warp) {
    together(static_cast<int>(first / lanes_a_warp));
    std::vector<int64_t> most;
    for (size_t i = first; i < std::min(first + lanes_a_warp, lanes_.size()); ++i) {
      const std::vector<int64_t>& times = lanes_[i].times;
      most.resize(std::max(most.size(), times.size()));
      for (size_t part = 0; part < times.size(); ++part) most[part] = std::max(most[part], times[part]);
    }
    Counts::all().add(most);
  }
}

void add_sectors(const char* handler, size_t bytes_read, size_t bytes_written) {
  Counts::all().add(std::string("sectors read by ") + handler, static_cast<int64_t>(bytes_read / sector_bytes));
  Counts::all().add(std::string("sectors written by ") + handler, static_cast<int64_t>(bytes_written / sector_bytes));
}

}  // namespace emulator
