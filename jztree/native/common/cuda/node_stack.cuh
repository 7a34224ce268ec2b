// The nodes that a warp still has to test on its way down the planes: 32 nodes of one plane at a time, one per lane.
// Runs of neighbouring opened nodes become one range of children, so that the next step fills more of its lanes.
#pragma once

#include <cstdint>

#include "tree.cuh"
#include "warp.cuh"

namespace jztree {

// Nodes of a plane that are still to be tested, as indices in the flat arrays.
struct NodeRange {
  uint32_t begin, end;
  int32_t plane;
};

// A lane's node of such a range, and the node's rows. Lanes after the last node have no rows.
struct LaneNode {
  uint32_t node, first, end;

  template <typename T>
  __device__ LaneNode(const TreeView<T>& tree, const NodeRange& range)
      : node(range.begin + static_cast<uint32_t>(lane_index())), first(0), end(0) {
    if (node >= range.end) return;
    first = static_cast<uint32_t>(tree.first_row(range.plane, node));
    end = static_cast<uint32_t>(tree.first_row(range.plane, static_cast<int64_t>(node) + 1));
  }

  __device__ bool has_rows() const { return end > first; }
};

class NodeStack {
 public:
  // Shared memory of a warp. A step pushes at most 16 ranges, or 17 in two pushes. All are of one plane, and at that
  // time the stack holds no range of that plane or a lower one. If a step takes only part of a range, the rest replaces
  // the range on the stack.
  JZTREE_BOTH static constexpr int bytes(int planes) {
    return (((planes - 1) * (warp_size / 2 + 1) + 1) * static_cast<int>(sizeof(NodeRange)) + 15) / 16 * 16;
  }

  __device__ explicit NodeStack(unsigned char* shared) : ranges_(reinterpret_cast<NodeRange*>(shared)) {}

  // Put the top plane on the stack, which is empty, so all lanes have read its old contents. All lanes call this and
  // the functions below.
  template <typename T>
  __device__ void begin(const TreeView<T>& tree) {
    int top = tree.planes - 1;
    if (lane_index() == 0)
      ranges_[0] = {static_cast<uint32_t>(tree.starts[top]), static_cast<uint32_t>(tree.starts[top + 1]), top};
    size_ = 1;
  }

  // Take up to 32 nodes off the stack; false if it is empty.
  __device__ bool next(NodeRange* range) {
    if (size_ == 0) return false;
    __syncwarp();
    *range = ranges_[size_ - 1];
    __syncwarp();
    if (range->end - range->begin > warp_size) {
      if (lane_index() == 0) ranges_[size_ - 1].begin = range->begin + warp_size;
      range->end = range->begin + warp_size;
    } else {
      --size_;
    }
    return true;
  }

  // Push the children of the lanes' nodes that have a bit in `opened`. With Ascending, the first children are taken off
  // first.
  template <bool Ascending, typename T>
  __device__ void push_children(const TreeView<T>& tree, int plane, uint32_t node, unsigned opened) {
    int lane = lane_index();
    unsigned starts = opened & ~(opened << 1), behind = ~(opened >> lane);
    uint32_t begin = 0, end = 0;
    if (opened >> lane & 1) {
      begin = static_cast<uint32_t>(tree.first_child(plane, node));
      end = static_cast<uint32_t>(tree.first_child(plane, static_cast<int64_t>(node) + 1));
    }
    // The last lane of the run that starts here.
    int last = behind ? lane + __ffs(static_cast<int>(behind)) - 2 : warp_size - 1;
    bool start = starts >> lane & 1;
    end = __shfl_sync(all_lanes, end, start ? last : lane);
    unsigned before = (1u << lane) - 1;
    int place = size_ + __popc(Ascending ? starts & ~before & ~(1u << lane) : starts & before);
    if (start) ranges_[place] = {begin, end, plane - 1};
    size_ += __popc(starts);
  }

  // Open the lanes' nodes of a range that have a bit in `opened`: push their children, in the order of rows; for
  // leaves, call visit(leaf, first, end), with their rows, in all lanes.
  template <typename T, typename Visit>
  __device__ void open(const TreeView<T>& tree, const NodeRange& range, const LaneNode& mine, unsigned opened,
                       const Visit& visit) {
    if (range.plane > 0) {
      push_children<true>(tree, range.plane, mine.node, opened);
      return;
    }
    for (; opened; opened &= opened - 1) {
      int lane = __ffs(static_cast<int>(opened)) - 1;
      visit(range.begin + static_cast<uint32_t>(lane), __shfl_sync(all_lanes, mine.first, lane),
            __shfl_sync(all_lanes, mine.end, lane));
    }
  }

 private:
  NodeRange* ranges_;
  int size_ = 0;
};

}  // namespace jztree
