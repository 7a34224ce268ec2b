// The pairs of two leaves, counted by a warp. Each lane has one particle of the first leaf; 32 particles of the second
// at a time are in shared memory, and all lanes read the same one. If only few edges can separate the pairs, each lane
// counts the pairs within each edge, four edges at a time; otherwise the bin of every pair is searched.
#pragma once

#include <cstdint>
#include <limits>

#include "pair_bounds.cuh"

namespace jztree {

// The rows of a leaf, and its region.
struct LeafRows {
  uint32_t first, end;
  int32_t region;
};

template <PairMode Mode, int D, typename T>
class PairLeaf {
 public:
  using Finder = PairBinFinder<Mode, D, T>;

  JZTREE_BOTH static constexpr int shared_bytes() { return warp_size * static_cast<int>(sizeof(RowPoint<D, T>)); }

  __device__ PairLeaf(const PairProblem<D, T>& in, const PairSetup<D, T>& setup, unsigned char* shared)
      : in_(in), setup_(setup), finder_{in, setup}, points_(reinterpret_cast<RowPoint<D, T>*>(shared)) {}

  // Called by all lanes. itself: both are the same leaf, and each of its pairs counts once.
  __device__ void pair(const LeafRows& a, const NodeBox<D, T>& box_a, const LeafRows& b, const NodeBox<D, T>& box_b,
                       bool itself, PairTally& tally) {
    bool around = wraps_around(box_a, box_b, setup_.scale);
    mixed_regions_ = tally.has_regions() && (a.region < 0 || b.region < 0);
    for (uint32_t tile = a.first; tile < a.end; tile += warp_size) {
      tally.enter(a.region, b.region, mixed_regions_ ? 0 : warp_size * (b.end - b.first));
      take(tile + static_cast<uint32_t>(lane_index()), a.end, box_b);
      if (!__any_sync(all_lanes, used_ && finder_.counts(bins_))) continue;
      around ? with_tiles<true>(b, itself, tally) : with_tiles<false>(b, itself, tally);
    }
  }

 private:
  static constexpr int edges_at_once = 4, few_edges = 8;

  // Load the lane's particle, and find the possible bins of its pairs.
  __device__ void take(uint32_t row, uint32_t end, const NodeBox<D, T>& box_b) {
    row_ = row;
    used_ = row < end;
    bins_ = {in_.first.count, in_.first.count, in_.second.count, in_.second.count};
    if (!used_) return;
    bool coincide;
    point_ = load_point(in_.one.tree.pos, row, setup_.scale);
    bins_ = finder_.between(point_.x, point_.x, box_b, &coincide);
  }

  template <bool Around>
  __device__ void with_tiles(const LeafRows& b, bool itself, PairTally& tally) {
    int lo = -warp_max(used_ ? -bins_.lo : -in_.first.count), hi = warp_max(used_ ? bins_.hi : 0);
    bool compares = Mode == PairMode::distance && !tally.weighted() && !mixed_regions_ && hi - lo <= few_edges;
    each_tile(in_.other.tree.pos, b.first, b.end, setup_.scale, points_, [&](uint32_t tile, uint32_t count) {
      // The number of particles to skip: those before the lane's particle in the same leaf, and the particle itself.
      uint32_t skipped = !used_                    ? count
                         : !itself || row_ < tile  ? 0
                         : row_ - tile + 1 < count ? row_ - tile + 1
                                                   : count;
      if (compares) {
        compare<Around>(tile, skipped, count, lo, hi, tally);
      } else {
        look_up<Around>(tile, skipped, count, tally);
      }
    });
  }

  // Count pairs within each edge, from the outermost inwards; `lo` and `hi` are the same for all lanes.
  template <bool Around>
  __device__ void compare(uint32_t tile, uint32_t skipped, uint32_t count, int lo, int hi, PairTally& tally) const {
    uint32_t outside = warp_sum(count - skipped);
    for (int top = hi; top > lo && outside > 0; top -= edges_at_once) {
      uint32_t within[edges_at_once];
      count_within<Around>(tile, skipped, count, lo, top, within);
      for (int k = 0; k < edges_at_once && top - 1 - k >= lo; ++k) {
        uint32_t inside = warp_sum(within[k]);
        if (lane_index() == 0) tally.add(bin(tally, top - k), outside - inside);
        outside = inside;
      }
    }
    if (lane_index() == 0) tally.add(bin(tally, lo), outside);
  }
  __device__ int bin(const PairTally& tally, int edge) const { return tally.totals().bin(edge, in_.first.count, 0, 0); }

  // The lane's pairs within the edges before `top`, down to `lo`, the outermost first.
  template <bool Around>
  __device__ void count_within(uint32_t tile, uint32_t skipped, uint32_t count, int lo, int top,
                               uint32_t (&within)[edges_at_once]) const {
    T surely[edges_at_once], possibly[edges_at_once];
    uint32_t maybe[edges_at_once];
    for (int k = 0; k < edges_at_once; ++k) {
      int edge = top - 1 - k;
      within[k] = maybe[k] = 0;
      surely[k] = edge >= lo ? in_.first.surely[edge] : T{-1};
      possibly[k] = edge >= lo ? in_.first.possibly[edge] : T{-1};
    }
    for (uint32_t i = skipped; i < count; ++i) {
      T distance2 = square<Around>(i);
      for (int k = 0; k < edges_at_once; ++k) {
        within[k] += distance2 <= surely[k];
        maybe[k] += distance2 <= possibly[k];
      }
    }
    for (int k = 0; k < edges_at_once; ++k)
      if (maybe[k] != within[k])
        within[k] += decide<Around>(tile, skipped, count, surely[k], possibly[k], in_.first.exact[top - 1 - k]);
  }

  // The number of the lane's undecided pairs that are within an edge.
  template <bool Around>
  __device__ uint32_t decide(uint32_t tile, uint32_t skipped, uint32_t count, T surely, T possibly,
                             double exact) const {
    uint32_t within = 0;
    for (uint32_t i = skipped; i < count; ++i) {
      T distance2 = square<Around>(i);
      if (distance2 > surely && distance2 <= possibly)
        within += setup_.rule.within_first(first_pos(), second_pos(tile + i), exact);
    }
    return within;
  }

  template <bool Around>
  __device__ T square(uint32_t i) const {
    const RowPoint<D, T> other = points_[i];
    return squared_distance<Around>(point_, other, setup_.scale);
  }

  __device__ const T* first_pos() const { return in_.one.tree.pos + static_cast<int64_t>(row_) * D; }
  __device__ const T* second_pos(uint32_t row) const { return in_.other.tree.pos + static_cast<int64_t>(row) * D; }

  template <bool Around>
  __device__ void look_up(uint32_t tile, uint32_t skipped, uint32_t count, PairTally& tally) const {
    for (uint32_t i = 0; i < count; ++i) {
      int bin = i < skipped ? -1 : bin_with<Around>(tile + i, i, tally.totals());
      if (tally.weighted() || mixed_regions_) {
        add_one(bin, tile + i, tally);
      } else {
        tally.add(bin, 1);
      }
    }
  }

  // Called by all lanes.
  __device__ void add_one(int bin, uint32_t row, PairTally& tally) const {
    int32_t region_a = used_ ? in_.one.row_region(row_) : 0, region_b = in_.other.row_region(row);
    if (!mixed_regions_) {
      tally.add(bin, 1);
    } else if (bin >= 0) {
      tally.add_to_result(bin, 1, region_a, region_b);
    }
    if (!tally.weighted()) return;
    double weight = used_ ? in_.one.row_weight(row_) * in_.other.row_weight(row) : 0;
    if (in_.separations && bin >= 0) weight *= setup_.rule.separation(first_pos(), second_pos(row));
    tally.add_weights(bin, weight, region_a, region_b);
  }

  template <bool Around>
  __device__ int bin_with(uint32_t row, uint32_t i, const PairTotals& totals) const {
    const RowPoint<D, T> other = points_[i];
    T first = 0, along = 0;
    for (int d = 0; d < D; ++d) {
      T displacement = difference<Around>(point_, other, d, setup_.scale);
      if (finder_.is_across(d)) first += displacement * displacement;
      if (Finder::sighted && d == finder_.axis()) along = displacement < 0 ? -displacement : displacement;
    }
    return finder_.bin_of(totals, bins_, first, along, first_pos(), second_pos(row));
  }

  const PairProblem<D, T>& in_;
  const PairSetup<D, T>& setup_;
  const Finder finder_;
  RowPoint<D, T>* points_;
  // The lane's particle.
  uint32_t row_ = 0;
  bool used_ = false;
  RowPoint<D, T> point_{};
  PairBinRange bins_;
  bool mixed_regions_ = false;  // pairs of the current leaves have individual regions
};

}  // namespace jztree
