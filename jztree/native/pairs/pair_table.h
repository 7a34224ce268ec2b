// The counts of one task: pairs by the first edges of both quantities that contain them, in a table with one entry more
// than there are edges in each direction. The entries before the first edge and after the last belong to no bin.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace jztree {

class PairTable {
 public:
  // rows: the first for all pairs, the others for pairs with a member in each region. edges: the numbers of edges of
  // both quantities.
  PairTable(int64_t rows, int64_t edges, int64_t edges_b, bool weighted)
      : rows_(rows), second_(edges_b + 1), size_((edges + 1) * second_) {
    counts_.resize(static_cast<size_t>(rows_ * size_));
    here_.resize(static_cast<size_t>(size_));
    if (weighted) sums_.resize(counts_.size()), sums_here_.resize(here_.size());
    if (size_ <= most_places) copies_ = many_copies;
    tally_.resize(here_.size() * static_cast<size_t>(copies_));
    sums_tally_.resize(weighted ? tally_.size() : 0);
  }

  bool weighted() const { return !sums_.empty(); }
  bool has_regions() const { return rows_ > 1; }

  // Set the regions of the pairs that are added until the next call.
  void enter(int32_t region_a, int32_t region_b) {
    if (!has_regions() || (region_a == region_a_ && region_b == region_b_)) return;
    leave();
    region_a_ = region_a, region_b_ = region_b;
  }
  // Add the counts since the last call to the table.
  void leave() {
    add_tally();
    add_here(0);
    if (has_regions() && region_a_ >= 0) {
      add_here(1 + region_a_);
      if (region_b_ != region_a_) add_here(1 + region_b_);
    }
    std::fill(here_.begin(), here_.end(), 0);
    std::fill(sums_here_.begin(), sums_here_.end(), 0.);
  }

  int64_t places() const { return size_; }
  // The place of a pair. Place 0 belongs to no bin.
  int64_t place(int64_t first, int64_t second) const { return first * second_ + second; }

  // Count pairs by their places, and add their weights if used. Consecutive pairs are often at the same place, and a
  // processor needs several cycles before it can change a number in memory again. So several counters take turns.
  void add_pairs(const int32_t* places, const double* weights, int64_t pairs) {
    if (tallied_ + pairs > std::numeric_limits<uint32_t>::max()) add_tally();
    tallied_ += pairs;
    if (weighted()) {
      copies_ > 1 ? add_turns<many_copies, true>(places, weights, pairs) : add_turns<1, true>(places, weights, pairs);
    } else {
      copies_ > 1 ? add_turns<many_copies, false>(places, weights, pairs) : add_turns<1, false>(places, weights, pairs);
    }
  }

  // The counts from a place on.
  int64_t* counts(int64_t place) { return here_.data() + place; }

  void add(int64_t place, int64_t number, double weight) {
    here_[static_cast<size_t>(place)] += number;
    if (weighted()) sums_here_[static_cast<size_t>(place)] += weight;
  }
  // Add one pair, for any regions.
  void add_pair(int64_t place, int32_t region_a, int32_t region_b, double weight) {
    add_at(0, place, weight);
    add_at(1 + region_a, place, weight);
    if (region_b != region_a) add_at(1 + region_b, place, weight);
  }

  int64_t count(int64_t row, int64_t first, int64_t second) const { return counts_[index(row, first, second)]; }
  double sum(int64_t row, int64_t first, int64_t second) const { return sums_[index(row, first, second)]; }

  void add(const PairTable& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    for (size_t i = 0; i < sums_.size(); ++i) sums_[i] += other.sums_[i];
  }

 private:
  size_t index(int64_t row, int64_t first, int64_t second) const {
    return static_cast<size_t>(row * size_ + place(first, second));
  }
  void add_at(int64_t row, int64_t place, double weight) {
    size_t i = static_cast<size_t>(row * size_ + place);
    counts_[i] += 1;
    if (weighted()) sums_[i] += weight;
  }
  template <int Copies, bool Weighted>
  void add_turns(const int32_t* places, const double* weights, int64_t pairs) {
    uint32_t* counts[Copies];
    double* sums[Copies];
    for (int turn = 0; turn < Copies; ++turn) {
      counts[turn] = tally_.data() + turn * size_;
      sums[turn] = sums_tally_.data() + (Weighted ? turn * size_ : 0);
    }
    auto add = [&](int64_t pair, int turn) {
      // Unsigned, because extending a sign would take one more instruction.
      const uint32_t place = static_cast<uint32_t>(places[pair]);
      ++counts[turn][place];
      if (Weighted) sums[turn][place] += weights[pair];
    };
    int64_t pair = 0;
    for (; pair + Copies <= pairs; pair += Copies)
      for (int turn = 0; turn < Copies; ++turn) add(pair + turn, turn);
    for (int turn = 0; pair < pairs; ++turn) add(pair++, turn);
  }

  // In a fixed order, so that sums have the same bits in every run.
  void add_tally() {
    if (tallied_ == 0) return;
    tallied_ = 0;
    for (size_t i = 0; i < tally_.size(); ++i) {
      here_[i % here_.size()] += tally_[i];
      if (weighted()) sums_here_[i % here_.size()] += sums_tally_[i];
    }
    std::fill(tally_.begin(), tally_.end(), 0);
    std::fill(sums_tally_.begin(), sums_tally_.end(), 0.);
  }
  void add_here(int64_t row) {
    for (int64_t i = 0; i < size_; ++i) counts_[static_cast<size_t>(row * size_ + i)] += here_[static_cast<size_t>(i)];
    if (!weighted()) return;
    for (int64_t i = 0; i < size_; ++i)
      sums_[static_cast<size_t>(row * size_ + i)] += sums_here_[static_cast<size_t>(i)];
  }

  // With more places, the counters would not stay in the fastest cache.
  static constexpr int64_t most_places = 1024;
  static constexpr int64_t many_copies = 4;

  int64_t rows_, second_, size_, copies_ = 1;
  int64_t tallied_ = 0;  // the number of pairs in the tally
  std::vector<uint32_t> tally_;
  std::vector<double> sums_tally_;
  std::vector<int64_t> counts_, here_;
  std::vector<double> sums_, sums_here_;
  int32_t region_a_ = -1, region_b_ = -1;
};

}  // namespace jztree
