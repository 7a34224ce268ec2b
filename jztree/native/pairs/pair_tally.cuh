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
  int second;        // number of bins of the second quantity
  bool fits_shared;  // whether the bins fit into shared memory

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
    return totals.fits_shared ? static_cast<int>((totals.bins * 4 + 15) / 16 * 16) : 0;
  }

  // All lanes call this and the functions below, except where stated otherwise.
  __device__ PairTally(const PairTotals& totals, unsigned char* shared, int64_t task)
      : totals_(totals),
        counts_(totals.fits_shared ? reinterpret_cast<uint32_t*>(shared) : nullptr),
        sum_(totals.sum ? totals.sum + task * totals.rows * totals.bins : nullptr) {
    for (int64_t bin = lane_index(); counts_ && bin < totals_.bins; bin += warp_size) counts_[bin] = 0;
    __syncwarp();
  }

  __device__ bool weighted() const { return sum_ != nullptr; }
  __device__ bool has_regions() const { return totals_.rows > 1; }
  __device__ const PairTotals& totals() const { return totals_; }

  // Set the regions of the next pairs; at most `pairs` pairs follow until the next call.
  __device__ void enter(int32_t region_a, int32_t region_b, uint32_t pairs) {
    bool same_regions = !has_regions() || (region_a == region_a_ && region_b == region_b_);
    if (!same_regions || pairs > std::numeric_limits<uint32_t>::max() - pairs_) leave();
    region_a_ = region_a, region_b_ = region_b;
    pairs_ += pairs;
  }

  // Add the counts to the result.
  __device__ void leave() {
    __syncwarp();
    for (int64_t bin = lane_index(); counts_ && bin < totals_.bins; bin += warp_size) {
      if (counts_[bin] > 0) add_to_result(bin, counts_[bin], region_a_, region_b_);
      counts_[bin] = 0;
    }
    __syncwarp();
    pairs_ = 0;
  }

  // Called by each lane independently.
  __device__ void add(int bin, uint32_t pairs) {
    if (bin < 0 || pairs == 0) return;
    if (counts_) {
      atomicAdd(counts_ + bin, pairs);
    } else {
      add_to_result(bin, pairs, region_a_, region_b_);
    }
  }
  // The same for pairs with individual regions, or more pairs than fit into words.
  __device__ void add_to_result(int64_t bin, uint64_t pairs, int32_t region_a, int32_t region_b) const {
    add_at(bin, pairs);
    if (!has_regions()) return;
    add_at((1 + region_a) * totals_.bins + bin, pairs);
    if (region_b != region_a) add_at((1 + region_b) * totals_.bins + bin, pairs);
  }

  // Add the weight of each lane that has a bin (from 0 on), with regions.
  __device__ void add_weights(int bin, double weight, int32_t region_a, int32_t region_b) {
    add_weights_at(bin, weight);
    if (!has_regions()) return;
    add_weights_at(bin < 0 ? -1 : (1 + region_a) * totals_.bins + bin, weight);
    add_weights_at(bin < 0 || region_b == region_a ? -1 : (1 + region_b) * totals_.bins + bin, weight);
  }

 private:
  __device__ void add_at(int64_t place, uint64_t pairs) const {
    atomicAdd(totals_.count + place, static_cast<unsigned long long>(pairs));
  }

  // Bin by bin, the lanes' weights in a fixed order.
  __device__ void add_weights_at(int64_t place, double weight) {
    for (unsigned remaining = __ballot_sync(all_lanes, place >= 0); remaining != 0;) {
      int64_t place_of_first = __shfl_sync(all_lanes, place, __ffs(static_cast<int>(remaining)) - 1);
      remaining &= ~__ballot_sync(all_lanes, place == place_of_first);
      double together = warp_sum(place == place_of_first ? weight : 0.);
      if (lane_index() == 0) sum_[place_of_first] += together;
    }
  }

  const PairTotals totals_;
  uint32_t* counts_;  // [bin]
  double* sum_;       // (rows, bins)
  int32_t region_a_ = -1, region_b_ = -1;
  uint32_t pairs_ = 0;
};

}  // namespace jztree
