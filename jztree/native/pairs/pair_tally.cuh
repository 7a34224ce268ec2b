// The counts of a warp, by bins. Numbers go to a table of words in shared memory. When the regions of pairs change or a
// word might overflow, they are added to the result by 64-bit atomic additions, which give the same result in any
// order. Weights go to a separate table of each warp in global memory. One lane adds to it, in an order that does not
// depend on timing.
#pragma once

#include <cstdint>
#include <limits>

#include "common/cuda/warp.cuh"

namespace jztree {

struct PairTotals {
  unsigned long long* count;  // (rows, bins)
  double* sum;                // (tasks, rows, bins); null without weights
  int64_t rows, bins;
  int second;   // number of bins of the second quantity
  bool shared;  // whether the bins fit into shared memory

  // The bin of a pair whose first edges are these, out of `edges` and `edges_b` edges; -1: none.
  __device__ int bin(int edge, int edges, int edge_b, int edges_b) const {
    if (edge <= 0 || edge >= edges || (edges_b > 0 && (edge_b <= 0 || edge_b >= edges_b))) return -1;
    return edges_b > 0 ? (edge - 1) * second + edge_b - 1 : edge - 1;
  }
};

class PairTally {
 public:
  static constexpr int64_t most_shared_bins = 3072;

  JZTREE_BOTH static int shared_bytes(const PairTotals& totals) {
    return totals.shared ? static_cast<int>((totals.bins * 4 + 15) / 16 * 16) : 0;
  }

  // All lanes call this and the functions below, except where stated otherwise.
  __device__ PairTally(const PairTotals& totals, unsigned char* shared, int64_t task)
      : totals_(totals),
        here_(totals.shared ? reinterpret_cast<uint32_t*>(shared) : nullptr),
        sum_(totals.sum ? totals.sum + task * totals.rows * totals.bins : nullptr) {
    for (int64_t bin = lane_index(); here_ && bin < totals_.bins; bin += warp_size) here_[bin] = 0;
    __syncwarp();
  }

  __device__ bool weighted() const { return sum_ != nullptr; }
  __device__ bool has_regions() const { return totals_.rows > 1; }
  __device__ const PairTotals& totals() const { return totals_; }

  // Set the regions of the next pairs; at most `pairs` pairs follow until the next call.
  __device__ void enter(int32_t one, int32_t other, uint32_t pairs) {
    bool same = !has_regions() || (one == one_ && other == other_);
    if (!same || pairs > std::numeric_limits<uint32_t>::max() - pairs_) leave();
    one_ = one, other_ = other;
    pairs_ += pairs;
  }

  // Add the counts to the result.
  __device__ void leave() {
    __syncwarp();
    for (int64_t bin = lane_index(); here_ && bin < totals_.bins; bin += warp_size) {
      if (here_[bin] > 0) add_to_result(bin, here_[bin], one_, other_);
      here_[bin] = 0;
    }
    __syncwarp();
    pairs_ = 0;
  }

  // Called by each lane independently.
  __device__ void add(int bin, uint32_t pairs) {
    if (bin < 0 || pairs == 0) return;
    if (here_) {
      atomicAdd(here_ + bin, pairs);
    } else {
      add_to_result(bin, pairs, one_, other_);
    }
  }
  // The same for pairs with individual regions, or more pairs than fit into words.
  __device__ void add_to_result(int64_t bin, uint64_t pairs, int32_t one, int32_t other) const {
    add_at(bin, pairs);
    if (!has_regions()) return;
    add_at((1 + one) * totals_.bins + bin, pairs);
    if (other != one) add_at((1 + other) * totals_.bins + bin, pairs);
  }

  // Add the weight of each lane that has a bin (from 0 on), with regions.
  __device__ void add_weights(int bin, double weight, int32_t one, int32_t other) {
    add_weights_at(bin, weight);
    if (!has_regions()) return;
    add_weights_at(bin < 0 ? -1 : (1 + one) * totals_.bins + bin, weight);
    add_weights_at(bin < 0 || other == one ? -1 : (1 + other) * totals_.bins + bin, weight);
  }

 private:
  __device__ void add_at(int64_t place, uint64_t pairs) const {
    atomicAdd(totals_.count + place, static_cast<unsigned long long>(pairs));
  }

  // Bin by bin, the lanes' weights in a fixed order.
  __device__ void add_weights_at(int64_t place, double weight) {
    for (unsigned left = __ballot_sync(all_lanes, place >= 0); left != 0;) {
      int64_t at = __shfl_sync(all_lanes, place, __ffs(static_cast<int>(left)) - 1);
      left &= ~__ballot_sync(all_lanes, place == at);
      double together = warp_sum(place == at ? weight : 0.);
      if (lane_index() == 0) sum_[at] += together;
    }
  }

  const PairTotals totals_;
  uint32_t* here_;  // [bin]
  double* sum_;     // (rows, bins)
  int32_t one_ = -1, other_ = -1;
  uint32_t pairs_ = 0;
};

}  // namespace jztree
