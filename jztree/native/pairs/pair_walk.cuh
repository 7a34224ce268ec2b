// The walk of a warp down two hierarchies, or of one with itself, that counts pairs; pair_walk.h explains it. A step
// compares a node of the first set with 32 of the second, one per lane. Node pairs without pairs in any bin are
// skipped, and those with all pairs in one bin are counted. In all other node pairs, the wider node is opened. All
// lanes together process a pair of leaves.
#pragma once

#include <cstdint>

#include "pair_leaf.cuh"
#include "pair_stack.cuh"

namespace jztree {

template <PairMode Mode, int D, typename T>
class PairWalk {
 public:
  using Leaf = PairLeaf<Mode, D, T>;

  // Shared memory of a warp.
  JZTREE_BOTH static int shared_bytes(const PairProblem<D, T>& in) {
    return Leaf::shared_bytes() + PairStack::bytes(in.plane, in.other.tree.planes);
  }

  __device__ PairWalk(const PairProblem<D, T>& in, const PairSetup<D, T>& setup, unsigned char* shared)
      : in_(in), setup_(setup), finder_{in, setup}, leaves_(in, setup, shared), stack_(shared + Leaf::shared_bytes()) {}

  // Called by all lanes: count all pairs of a node's particles with the other set, or with later particles of the same
  // set.
  __device__ void run(uint32_t node, PairTally& tally) {
    stack_.begin(node, in_.plane, in_.other.tree);
    for (PairRange range; stack_.next(&range);) step(range, tally);
  }

 private:
  enum class Next { nothing, whole, leaves, open_first, open_second };

  // A node, by its index in the flat arrays.
  struct Node {
    NodeBox<D, T> box;
    LeafRows rows;

    __device__ T width2() const {
      T sum = 0;
      for (int d = 0; d < D; ++d) sum += (box.high[d] - box.low[d]) * (box.high[d] - box.low[d]);
      return sum;
    }
  };

  __device__ Node load(const PairParticles<D, T>& set, int plane, uint32_t node) const {
    return {load_box(set.tree, node, setup_.scale.factor),
            {static_cast<uint32_t>(set.tree.first_row(plane, node)),
             static_cast<uint32_t>(set.tree.first_row(plane, static_cast<int64_t>(node) + 1)), set.region_of(node)}};
  }

  __device__ void step(const PairRange& range, PairTally& tally) {
    uint32_t place = range.b + static_cast<uint32_t>(lane_index());
    Node a = load(in_.one, range.a_plane, range.a), b{};
    if (place < range.b_end) b = load(in_.other, range.b_plane, place);
    PairBinRange bins;
    Next next = Next::nothing;
    if (a.rows.end > a.rows.first && b.rows.end > b.rows.first) next = decide(range, a, b, &bins);
    add_whole(next == Next::whole, range.a, a.rows, place, b.rows, bins, tally);
    unsigned first = __ballot_sync(all_lanes, next == Next::open_first);
    unsigned second = __ballot_sync(all_lanes, next == Next::open_second);
    stack_.open_first(in_.one.tree, range, first);
    stack_.open_second(in_.other.tree, range, second);
    pair_leaves(a, __ballot_sync(all_lanes, next == Next::leaves), place, tally);
  }

  // Called by each lane: the next action for a node of the first set and one of the second.
  __device__ Next decide(const PairRange& range, const Node& a, const Node& b, PairBinRange* bins) const {
    bool nested = in_.self && a.rows.first < b.rows.end && b.rows.first < a.rows.end;
    if (in_.self && b.rows.end <= a.rows.first) return Next::nothing;
    bool coincide;
    *bins = finder_.between(a.box.low, a.box.high, b.box, &coincide);
    if (coincide || !finder_.counts(*bins)) return Next::nothing;
    if (nested) return both_planes(range) ? open(range, range.a_plane > range.b_plane) : Next::leaves;
    bool mixed_regions = in_.one.region && (a.rows.region < 0 || b.rows.region < 0);
    if (bins->is_single() && !mixed_regions && !in_.separations) return Next::whole;
    if (!both_planes(range)) return Next::leaves;
    return open(range, range.b_plane == 0 || (range.a_plane > 0 && a.width2() > b.width2()));
  }
  __device__ static bool both_planes(const PairRange& range) { return range.a_plane > 0 || range.b_plane > 0; }
  __device__ static Next open(const PairRange&, bool first) { return first ? Next::open_first : Next::open_second; }

  // Add nodes with all pairs in one bin.
  __device__ void add_whole(bool is_counted, uint32_t node_a, const LeafRows& a, uint32_t node_b, const LeafRows& b,
                            const PairBinRange& bins, PairTally& tally) const {
    constexpr uint64_t limit = uint64_t{1} << 26;  // limit for the word-sized total of all lanes
    int bin = is_counted ? tally.totals().bin(bins.lo, in_.first.count, bins.lo_b, in_.second.count) : -1;
    if (!__any_sync(all_lanes, bin >= 0)) return;
    uint64_t pairs = static_cast<uint64_t>(a.end - a.first) * (b.end - b.first);
    if (tally.has_regions() || pairs >= limit) {
      if (bin >= 0) tally.add_to_result(bin, pairs, a.region, b.region);
    }
    bool small = bin >= 0 && !tally.has_regions() && pairs < limit;
    if (!tally.has_regions()) {
      tally.enter(0, 0, warp_sum(small ? static_cast<uint32_t>(pairs) : 0u));
      if (small) tally.add(bin, static_cast<uint32_t>(pairs));
    }
    if (!tally.weighted()) return;
    double weight =
        is_counted ? in_.one.weight_of(node_a, a.end - a.first) * in_.other.weight_of(node_b, b.end - b.first) : 0;
    tally.add_weights(bin, weight, a.region, b.region);
  }

  // leaves: one bit per lane, set if its node of the second set is a leaf to be paired with the leaf of the first.
  __device__ void pair_leaves(const Node& a, unsigned leaves, uint32_t place, PairTally& tally) {
    for (; leaves; leaves &= leaves - 1) {
      uint32_t leaf = __shfl_sync(all_lanes, place, __ffs(static_cast<int>(leaves)) - 1);
      Node b = load(in_.other, 0, leaf);
      leaves_.pair(a.rows, a.box, b.rows, b.box, in_.self && a.rows.first == b.rows.first, tally);
    }
  }

  const PairProblem<D, T>& in_;
  const PairSetup<D, T>& setup_;
  const PairBinFinder<Mode, D, T> finder_;
  Leaf leaves_;
  PairStack stack_;
};

}  // namespace jztree
