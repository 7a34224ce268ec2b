// A leaf's walk down the planes, which links it to all leaves after it in z-order that are within the linking length.
//
// A warp tests 32 nodes of a plane at once, one per lane. Nodes that end before the leaf or are too far away are
// dropped. A leaf is one set if all its particles are linked to each other, directly or through others. If so, the walk
// also drops two kinds of nodes that are one set: nodes already in the leaf's set, and nodes that it joins whole
// because every pair is within the linking length. The children of neighbouring remaining nodes go on the stack in one
// range, so that the next step fills more of its lanes. For uniform particles, a step has about 11 nodes, and a leaf
// takes 6 to 9 steps. When the walk reaches another leaf, the particles of each leaf near the other's box are tested
// against each other. If both leaves are one set, the first link is enough. If only one leaf is one set, the test
// leaves out particles of the other leaf that are already in this set.
//
// Three rules prevent a warp from walking a whole cluster:
// * A leaf next to a void has a box that may reach far into a cluster. If the box is wider than the linking length,
//   nodes smaller than the box are also tested against the leaf's particles.
// * A leaf that is not one set skips a dense node if all of the leaf's particles near the node are already in its set.
// * If all particles of a node are at one place and have one linking length, the node counts as one particle.
// Only dense nodes about one linking length away remain, if they are not joined yet. In a cluster of n particles that
// spans a few linking lengths, the first leaves to walk test about n^(2/3) of its nodes.
//
// Memory: a step reads 2 corners and 4 splits per node. All planes but the lowest two stay in the caches.
#pragma once

#include <cstdint>

#include "common/cuda/node_stack.cuh"
#include "common/cuda/tree.cuh"
#include "common/cuda/warp.cuh"
#include "fof_rows.cuh"
#include "union_find.cuh"

namespace jztree {

// The data of a leaf that all lanes share, in shared memory: in registers, it would reduce the number of warps that run
// at once.
template <int D, typename T>
struct WalkingLeaf {
  RowPoint<D, T> staged[warp_size];  // tested against the lanes
  RowPoint<D, T> points[warp_size];  // the first points of the leaf
  NodeBox<D, T> box;
  T extent;
};

// Rule: see link_rule.h.
template <int D, typename T, typename Rule>
class LeafWalk {
 public:
  // Size of a warp's shared memory: the leaf and the stack.
  JZTREE_BOTH static constexpr int shared_bytes(int planes) { return leaf_bytes + NodeStack::bytes(planes); }

  __device__ LeafWalk(const DeviceTree<D, T>& tree, const LinkSetup<D, T, Rule>& setup, const UnionFind& sets,
                      const uint8_t* one_set, int64_t leaf, unsigned char* shared)
      : tree_(tree),
        setup_(setup),
        sets_(sets),
        one_set_(one_set),
        leaf_(*reinterpret_cast<WalkingLeaf<D, T>*>(shared)),
        stack_(shared + leaf_bytes),
        leaf_index_(leaf),
        tester_(tree.pos, setup, leaf_.staged),
        first_(static_cast<uint32_t>(tree.leaf_row(leaf))),
        end_(static_cast<uint32_t>(tree.leaf_row(leaf + 1))),
        one_(one_set[leaf] != 0) {
    NodeBox<D, T> box = load_box(tree, leaf, setup.scale.factor);
    wide_ = box.extent() * box.extent() > setup.rule.possibly_linked2(half(), half());
    if (lane_index() == 0) {
      leaf_.box = box;
      leaf_.extent = box.extent();
    }
    if (has_row(first_)) leaf_.points[lane_index()] = tester_.load(first_ + lane_index());
    member_ = one_ ? sets_.find(static_cast<int32_t>(first_)) : 0;
    __syncwarp();
  }

  // Called by all lanes of the warp.
  __device__ void run() {
    NodeRange range;
    for (stack_.begin(tree_); stack_.next(&range);) step(range);
  }

 private:
  static constexpr int leaf_bytes = (static_cast<int>(sizeof(WalkingLeaf<D, T>)) + 15) / 16 * 16;

  // The largest half of the leaf's rows.
  __device__ typename Rule::Half half() const { return setup_.rule.most_of(leaf_index_); }

  // Whether the lane has a row of the leaf, if lane 0 has the row `tile`.
  __device__ bool has_row(uint32_t tile) const { return tile + lane_index() < end_; }

  // Test up to 32 nodes.
  __device__ void step(const NodeRange& range) {
    const LaneNode mine(tree_, range);
    NodeBox<D, T> box{};
    bool open = mine.end > end_ && mine.has_rows();
    if (open) {
      box = load_box(tree_, mine.node, setup_.scale.factor);
      open = least_distance2(leaf_.box.low, leaf_.box.high, box, setup_.gap_period) <=
             setup_.rule.possibly_linked2(half(), setup_.rule.most_of(mine.node));
    }
    bool one_set = open && (range.plane == 0 ? one_set_[mine.node] != 0 : setup_.is_dense(box, mine.node));
    if (one_set && one_) open = !settled(box, mine.node, static_cast<int32_t>(mine.first));
    unsigned open_lanes = __ballot_sync(all_lanes, open);
    if (range.plane > 0) {
      if (wide_)
        open_lanes = without_far(open_lanes, __ballot_sync(all_lanes, box.extent() < leaf_.extent), range.begin);
      open_lanes = without_done(open_lanes, __ballot_sync(all_lanes, one_set), range);
      stack_.push_children<false>(tree_, range.plane, mine.node, open_lanes);
      return;
    }
    unsigned sets = __ballot_sync(all_lanes, one_set);
    for (; open_lanes; open_lanes &= open_lanes - 1) {
      int lane = __ffs(static_cast<int>(open_lanes)) - 1;
      uint32_t leaf = range.begin + static_cast<uint32_t>(lane);
      link_to_rows(leaf, load_box(tree_, leaf, setup_.scale.factor), static_cast<uint32_t>(tree_.leaf_row(leaf)),
                   static_cast<uint32_t>(tree_.leaf_row(static_cast<int64_t>(leaf) + 1)), sets >> lane & 1);
    }
  }

  // Join the leaf and a node if possible; both must be one set. Returns whether they are one set now.
  __device__ bool settled(const NodeBox<D, T>& box, int64_t node, int32_t first) {
    if (sets_.in_set(first, &member_)) return true;
    const typename Rule::Half least = setup_.rule.least_of(leaf_index_), other = setup_.rule.least_of(node);
    if (!setup_.all_linked(leaf_.box.low, leaf_.box.high, least, box, other)) return false;
    sets_.unite(first, member_);
    return true;
  }

  // Return `lanes` without the lanes whose `small` nodes are too far from every particle of the leaf. The lanes have
  // just read the boxes, so the boxes are in the nearest cache.
  __device__ unsigned without_far(unsigned lanes, unsigned small, uint32_t node) {
    for (small &= lanes; small; small &= small - 1) {
      int lane = __ffs(static_cast<int>(small)) - 1;
      if (!any_row_near(node + static_cast<uint32_t>(lane))) lanes &= ~(1u << lane);
    }
    return lanes;
  }

  // Link the leaf to `dense` nodes. Returns `lanes` without the lanes whose node then needs no further links to the
  // leaf.
  __device__ unsigned without_done(unsigned lanes, unsigned dense, const NodeRange& range) {
    for (dense &= lanes; dense; dense &= dense - 1) {
      int lane = __ffs(static_cast<int>(dense)) - 1;
      uint32_t node = range.begin + static_cast<uint32_t>(lane);
      NodeBox<D, T> box = load_box(tree_, node, setup_.scale.factor);
      uint32_t first = static_cast<uint32_t>(tree_.first_row(range.plane, node));
      bool point = setup_.rule.exact_zero && box.extent() == 0 && setup_.rule.is_one_length(node);
      // A single particle represents many at the same place.
      if (point) link_to_rows(node, box, first, first + 1, true);
      if (point || (!one_ && rows_settled(node, box, static_cast<int32_t>(first)))) lanes &= ~(1u << lane);
    }
    return lanes;
  }

  // Link rows to a dense node. Returns whether all rows of the leaf that may be linked to any of its particles are in
  // its set now.
  __device__ bool rows_settled(uint32_t node, const NodeBox<D, T>& box, int32_t first) {
    bool open = false;
    for (uint32_t tile = first_; tile < end_; tile += warp_size) {
      RowPoint<D, T> point = point_at(tile);
      bool reached = tester_.near_box(point, has_row(tile), tile, box, setup_.rule.most_of(node)) >> lane_index() & 1;
      int32_t row = static_cast<int32_t>(tile) + lane_index();
      if (reached && setup_.all_linked(point.x, point.x, setup_.rule.of_row(row), box, setup_.rule.least_of(node))) {
        sets_.unite(row, first);
      } else if (reached) {
        open |= sets_.find(row) != sets_.find(first);
      }
    }
    return !__any_sync(all_lanes, open);
  }

  __device__ bool any_row_near(uint32_t node) {
    const NodeBox<D, T> box = load_box(tree_, node, setup_.scale.factor);
    unsigned reached = 0;
    for (uint32_t tile = first_; tile < end_ && !reached; tile += warp_size)
      reached = tester_.near_box(point_at(tile), has_row(tile), tile, box, setup_.rule.most_of(node));
    return reached != 0;
  }

  // For lanes that have a row.
  __device__ RowPoint<D, T> point_at(uint32_t tile) const {
    if (tile == first_ || !has_row(tile)) return leaf_.points[lane_index()];
    return tester_.load(tile + lane_index());
  }

  // Link the particles of this leaf to the rows [first, end) of a node, which may be one set.
  __device__ void link_to_rows(uint32_t node, const NodeBox<D, T>& box, uint32_t first, uint32_t end, bool other_one) {
    // Other leaves of the same step may have joined the two meanwhile. Lanes may see different states, but must
    // continue together.
    if (one_ && other_one && __any_sync(all_lanes, sets_.in_set(static_cast<int32_t>(first), &member_))) return;
    bool around = wraps_around(leaf_.box, box, setup_.scale);
    int32_t other_member = static_cast<int32_t>(first);
    for (uint32_t tile = first_; tile < end_; tile += warp_size) {
      RowPoint<D, T> point = point_at(tile);
      unsigned reached = tester_.near_box(point, has_row(tile), tile, box, setup_.rule.most_of(node));
      if (other_one && !one_) reached = outside(reached, tile, &other_member);
      if (!reached) continue;
      for (uint32_t other_tile = first; other_tile < end; other_tile += warp_size) {
        bool used = other_tile + lane_index() < end;
        RowPoint<D, T> other{};
        if (used) other = tester_.load(other_tile + lane_index());
        unsigned other_near = tester_.near_box(other, used, other_tile, leaf_.box, half());
        if (one_ && !other_one) other_near = outside(other_near, other_tile, &member_);
        if (!other_near) continue;
        // Staging the side with fewer points takes fewer steps.
        bool swap = __popc(reached) > __popc(other_near);
        tester_.stage(either(swap, other, point));
        if (link_tiles(either(swap, point, other), swap ? reached : other_near, swap ? tile : other_tile,
                       swap ? other_near : reached, swap ? other_tile : tile, swap ? other_one : one_,
                       swap ? one_ : other_one, around))
          return;
      }
    }
  }

  // The rows with a bit in `rows`, counted from `tile`, that are not yet in the set of `member`.
  __device__ unsigned outside(unsigned rows, uint32_t tile, int32_t* member) const {
    bool open = rows >> lane_index() & 1;
    if (open) open = !sets_.in_set(static_cast<int32_t>(tile) + lane_index(), member);
    return __ballot_sync(all_lanes, open);
  }

  // Link the lanes' points with a bit in `used` to the staged ones. rows, staged_rows: the rows of bit 0. Returns
  // whether the leaves are one set as a result.
  __device__ bool link_tiles(const RowPoint<D, T>& point, unsigned used, uint32_t rows, unsigned staged,
                             uint32_t staged_rows, bool staged_one, bool lanes_one, bool around) {
    bool both = staged_one && lanes_one;
    int lane = lane_index();
    unsigned links = tester_.links(point, used >> lane & 1, staged, around, rows, staged_rows, both);
    unsigned linked = __ballot_sync(all_lanes, links != 0);
    if (both && lane + 1 != __ffs(static_cast<int>(linked))) links = 0;
    if (staged_one) links &= 0u - links;
    for (; links; links &= links - 1)
      sets_.unite(static_cast<int32_t>(rows) + lane,
                  static_cast<int32_t>(staged_rows) + __ffs(static_cast<int>(links)) - 1);
    __syncwarp();
    return both && linked != 0;
  }

  const DeviceTree<D, T>& tree_;
  const LinkSetup<D, T, Rule>& setup_;
  const UnionFind sets_;
  const uint8_t* one_set_;  // [leaf]
  WalkingLeaf<D, T>& leaf_;
  NodeStack stack_;
  const int64_t leaf_index_;
  RowTester<D, T, Rule> tester_;
  uint32_t first_, end_;  // rows of the leaf
  bool one_, wide_;       // whether it is one set; whether it is wider than the linking length
  int32_t member_ = 0;    // if it is one set: an ancestor of its first row, which may differ between lanes
};

}  // namespace jztree
