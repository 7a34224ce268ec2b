// The counts of one task: pairs by the first edges of both quantities that contain them, in a table with one entry more
// than there are edges in each direction. The entries before the first edge and after the last belong to no bin.
#pragma once

#include <algorithm>
#include <cstdint>
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
  }

  bool weighted() const { return !sums_.empty(); }
  bool has_regions() const { return rows_ > 1; }

  // Set the regions of the pairs that are added until the next call.
  void enter(int32_t one, int32_t other) {
    if (!has_regions() || (one == one_ && other == other_)) return;
    leave();
    one_ = one, other_ = other;
  }
  // Add the counts since the last call to the table.
  void leave() {
    add_here(0);
    if (has_regions() && one_ >= 0) {
      add_here(1 + one_);
      if (other_ != one_) add_here(1 + other_);
    }
    std::fill(here_.begin(), here_.end(), 0);
    std::fill(sums_here_.begin(), sums_here_.end(), 0.);
  }

  // Direct access for counting pairs one by one, by the places of both quantities, while no others are added: their
  // numbers and, if used, weights.
  struct Here {
    int64_t* counts;
    double* sums;
  };
  Here here() { return {here_.data(), sums_here_.data()}; }

  // The counts of one place of the second quantity, `stride` apart from one first edge to the next.
  int64_t* column(int64_t second) { return here_.data() + second; }
  int64_t stride() const { return second_; }

  void add(int64_t first, int64_t second, int64_t number, double weight) {
    size_t place = static_cast<size_t>(first * second_ + second);
    here_[place] += number;
    if (weighted()) sums_here_[place] += weight;
  }
  // Add one pair, for any regions.
  void add_pair(int64_t first, int64_t second, int32_t one, int32_t other, double weight) {
    add_pair(first * second_ + second, one, other, weight);
  }
  void add_pair(int64_t place, int32_t one, int32_t other, double weight) {
    add_at(0, place, weight);
    add_at(1 + one, place, weight);
    if (other != one) add_at(1 + other, place, weight);
  }

  int64_t count(int64_t row, int64_t first, int64_t second) const { return counts_[at(row, first, second)]; }
  double sum(int64_t row, int64_t first, int64_t second) const { return sums_[at(row, first, second)]; }

  void add(const PairTable& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    for (size_t i = 0; i < sums_.size(); ++i) sums_[i] += other.sums_[i];
  }

 private:
  size_t at(int64_t row, int64_t first, int64_t second) const {
    return static_cast<size_t>(row * size_ + first * second_ + second);
  }
  void add_at(int64_t row, int64_t place, double weight) {
    size_t i = static_cast<size_t>(row * size_ + place);
    counts_[i] += 1;
    if (weighted()) sums_[i] += weight;
  }
  void add_here(int64_t row) {
    for (int64_t i = 0; i < size_; ++i) counts_[static_cast<size_t>(row * size_ + i)] += here_[static_cast<size_t>(i)];
    if (!weighted()) return;
    for (int64_t i = 0; i < size_; ++i)
      sums_[static_cast<size_t>(row * size_ + i)] += sums_here_[static_cast<size_t>(i)];
  }

  int64_t rows_, second_, size_;
  std::vector<int64_t> counts_, here_;
  std::vector<double> sums_, sums_here_;
  int32_t one_ = -1, other_ = -1;
};

}  // namespace jztree
