// The search for the lightest edges from up to 32 rows of a leaf to rows of other sets. Each lane has one row. The warp
// walks the planes once for all lanes, 32 nodes at a time (node_stack.cuh), and skips nodes within the set of all its
// rows, and nodes farther away than the largest radius. The rows of a leaf go through shared memory.
#pragma once

#include <cstdint>
#include <limits>

#include "common/cuda/node_stack.cuh"
#include "common/cuda/warp.cuh"
#include "edge_state.cuh"

namespace jztree {

template <int D, typename T>
class EdgeWalk {
 public:
  // Size of a warp's shared memory: the tested rows and the stack.
  JZTREE_BOTH static constexpr int shared_bytes(int planes) { return point_bytes + NodeStack::bytes(planes); }

  __device__ EdgeWalk(const EdgeState<D, T>& sets, unsigned char* shared)
      : sets_(sets),
        tree_(sets.tree),
        setup_(*sets.setup),
        points_(reinterpret_cast<RowPoint<D, T>*>(shared)),
        stack_(shared + point_bytes) {}

  // Search from the 32 rows after `first`, before `end`. Called by all lanes of the warp.
  __device__ void run(int64_t first, int64_t end) {
    row_ = first + lane_index();
    searching_ = row_ < end && !sets_.is_lightest[row_] && sets_.is_open(row_);
    if (!__any_sync(all_lanes, searching_)) return;
    begin();
    NodeRange range;
    for (stack_.begin(tree_); stack_.next(&range);) step(range);
    if (searching_) store();
    __syncwarp();
  }

 private:
  static constexpr int point_bytes = (warp_size * static_cast<int>(sizeof(RowPoint<D, T>)) + 15) / 16 * 16;

  __device__ void begin() {
    row_set_ = searching_ ? sets_.set[row_] : many_sets;
    const int32_t last_set = warp_max(row_set_);
    common_set_ = __any_sync(all_lanes, searching_ && row_set_ != last_set) ? many_sets : last_set;
    weight_ = bound_ = no_weight;
    pair_ = no_pair;
    to_ = -1;
    radius2_ = searching_ ? std::numeric_limits<T>::infinity() : T{-1};
    if (searching_) {
      point_ = load_point(tree_.pos, row_, setup_.scale);
      to_ = sets_.to[row_];
      if (to_ >= 0) {
        weight_ = sets_.weight(row_, to_);
        pair_ = sets_.rows_of(row_, to_);
      }
    }
    box_ = box_of_lanes(point_, searching_);
    limit();
  }

  // Update the radii from the least weights of all threads.
  __device__ void limit() {
    if (searching_) {
      const double set_limit = farther * sets_.least_of(row_set_), bound = weight_ < set_limit ? weight_ : set_limit;
      if (bound < bound_) {
        bound_ = bound;
        radius2_ = setup_.rule.possibly2(bound);
      }
    }
    reach2_ = warp_max(radius2_);
  }

  __device__ void step(const NodeRange& range) {
    const LaneNode mine(tree_, range);
    bool open = mine.has_rows();
    if (open) open = common_set_ == many_sets || sets_.nodes[mine.node] != common_set_;
    if (open) {
      const NodeBox<D, T> box = load_box(tree_, mine.node, setup_.scale.factor);
      open = least_distance2(box_.low, box_.high, box, setup_.gap_period) <= reach2_;
    }
    const unsigned opened = __ballot_sync(all_lanes, open);
    stack_.open(tree_, range, mine, opened, [&](uint32_t, uint32_t first, uint32_t end) { look_at(first, end); });
  }

  // Test all lanes' rows against those of a leaf.
  __device__ void look_at(uint32_t first, uint32_t end) {
    each_tile(tree_.pos, first, end, setup_.scale, points_, [&](uint32_t tile, uint32_t count) {
      if (!searching_) return;
      if (setup_.scale.periodic) {
        test<true>(tile, count);
      } else {
        test<false>(tile, count);
      }
    });
    limit();
  }

  template <bool Around>
  __device__ void test(uint32_t tile, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i)
      if (squared_distance<Around>(point_, points_[i], setup_.scale) <= radius2_) take(tile + i);
  }

  // Take the edge to a row if it is lighter than the lightest one so far.
  __device__ void take(uint32_t neighbour) {
    if (sets_.set[neighbour] == row_set_ || sets_.absent[neighbour]) return;
    const double weight = sets_.weight(row_, neighbour);
    if (weight > weight_) return;
    const uint64_t pair = sets_.rows_of(row_, neighbour);
    if (weight == weight_ && pair >= pair_) return;
    weight_ = weight;
    pair_ = pair;
    to_ = static_cast<int32_t>(neighbour);
    if (weight < bound_) {
      bound_ = weight;
      radius2_ = setup_.rule.possibly2(weight);
    }
    sets_.offer(row_set_, weight);
  }

  // See EdgeWalk::store in edge_walk.h.
  __device__ void store() {
    const double set_limit = farther * sets_.least_of(row_set_);
    const bool lightest = to_ >= 0 && weight_ <= set_limit;
    sets_.to[row_] = to_;
    sets_.is_lightest[row_] = lightest;
    sets_.floor[row_] = lightest ? weight_ : above(set_limit);
  }

  const EdgeState<D, T>& sets_;
  const DeviceTree<D, T>& tree_;
  const EdgeSetup<D, T>& setup_;
  RowPoint<D, T>* points_;
  NodeStack stack_;
  // Of the lane.
  int64_t row_ = 0;
  bool searching_ = false;
  int32_t row_set_ = many_sets, to_ = -1;
  double weight_ = no_weight, bound_ = no_weight;
  uint64_t pair_ = no_pair;
  T radius2_ = -1;
  RowPoint<D, T> point_{};
  // Of the warp.
  int32_t common_set_ = many_sets;
  NodeBox<D, T> box_{};
  T reach2_ = -1;
};

}  // namespace jztree
