// The pairs of nodes that a warp still has to test on its way down two hierarchies: nodes of one plane in each.
#pragma once

#include <cstdint>

#include "common/cuda/tree.cuh"
#include "common/cuda/warp.cuh"

namespace jztree {

// Each of some nodes of the first set with each of some of the second, as indices in the flat arrays. There is either
// one node of the first set, or at most 32 of the second.
struct PairRange {
  uint32_t a, a_end, b, b_end;
  int32_t a_plane, b_plane;
};

class PairStack {
 public:
  // Shared memory of a warp. A step pushes at most 32 ranges, with a sum of planes that is lower by one, and only when
  // the stack holds none of that sum or below; the rest of a range takes its place.
  JZTREE_BOTH static constexpr int bytes(int a_plane, int b_planes) {
    return (((a_plane + b_planes - 1) * warp_size + 1) * static_cast<int>(sizeof(PairRange)) + 15) / 16 * 16;
  }

  __device__ explicit PairStack(unsigned char* shared) : ranges_(reinterpret_cast<PairRange*>(shared)) {}

  // Put a node of the first set and the top plane of the second on the stack. All lanes call this and the functions
  // below.
  template <typename T>
  __device__ void begin(uint32_t node, int plane, const TreeView<T>& other) {
    int top = other.planes - 1;
    __syncwarp();
    if (lane_index() == 0)
      ranges_[0] = {
          node,  node + 1, static_cast<uint32_t>(other.starts[top]), static_cast<uint32_t>(other.starts[top + 1]),
          plane, top};
    size_ = 1;
  }

  // Take one node of the first set with up to 32 of the second off the stack; false if it is empty.
  __device__ bool next(PairRange* range) {
    if (size_ == 0) return false;
    __syncwarp();
    *range = ranges_[size_ - 1];
    __syncwarp();
    if (range->a_end - range->a > 1) {
      if (lane_index() == 0) ranges_[size_ - 1].a = range->a + 1;
      range->a_end = range->a + 1;
    } else if (range->b_end - range->b > warp_size) {
      if (lane_index() == 0) ranges_[size_ - 1].b = range->b + warp_size;
      range->b_end = range->b + warp_size;
    } else {
      --size_;
    }
    return true;
  }

  // Push pairs with the children of the nodes of the second set that have a bit in `opened`.
  template <typename T>
  __device__ void open_second(const TreeView<T>& other, const PairRange& range, unsigned opened) {
    PairRange run = run_from(range, opened);
    if (is_start(opened)) {
      uint32_t end = run.b_end - 1;
      run.b = static_cast<uint32_t>(other.first_child(range.b_plane, run.b));
      run.b_end = static_cast<uint32_t>(other.first_child(range.b_plane, static_cast<int64_t>(end) + 1));
      run.b_plane -= 1;
    }
    push(run, opened);
  }

  // Push pairs of the children of the first set's node with the nodes of the second set that have a bit in `opened`.
  template <typename T>
  __device__ void open_first(const TreeView<T>& one, const PairRange& range, unsigned opened) {
    PairRange run = run_from(range, opened);
    if (is_start(opened)) {
      run.a = static_cast<uint32_t>(one.first_child(range.a_plane, range.a));
      run.a_end = static_cast<uint32_t>(one.first_child(range.a_plane, static_cast<int64_t>(range.a) + 1));
      run.a_plane -= 1;
    }
    push(run, opened);
  }

 private:
  __device__ static bool is_start(unsigned opened) { return (opened & ~(opened << 1)) >> lane_index() & 1; }

  // The range, limited to the nodes of the second set in the run of set bits that begins at this lane.
  __device__ static PairRange run_from(PairRange range, unsigned opened) {
    unsigned lane = static_cast<unsigned>(lane_index()), behind = ~(opened >> lane);
    uint32_t length = behind ? static_cast<uint32_t>(__ffs(static_cast<int>(behind)) - 1) : warp_size - lane;
    range.b += lane;
    range.b_end = range.b + length;
    return range;
  }

  // The first lane of each run pushes it, the first run last.
  __device__ void push(const PairRange& run, unsigned opened) {
    unsigned starts = opened & ~(opened << 1);
    unsigned up_to = (2u << lane_index()) - 1;
    if (starts >> lane_index() & 1) ranges_[size_ + __popc(starts & ~up_to)] = run;
    size_ += __popc(starts);
  }

  PairRange* ranges_;
  int size_ = 0;
};

}  // namespace jztree
