// A warp's walk through the planes of the sources, the nearest nodes first, for a group of queries that are near each
// other. Coordinates are padded with zeros to W dimensions, so that few kernels serve all dimensions.
#pragma once

#include <cstdint>

#include "../common/geometry.h"
#include "../common/morton.h"
#include "../common/scale.h"
#include "knn_lists.cuh"
#include "tree.cuh"
#include "warp.cuh"

namespace jztree {

// The wrapped and scaled coordinates of a row, as the CPU's kernels stage them.
template <int W, typename From, typename T>
__device__ __forceinline__ void load_point(const TreeView<From>& tree, const Scale<W, T>& scale, int64_t row, T* x) {
#pragma unroll
  for (int d = 0; d < W; ++d) {
    From given = d < tree.dims ? tree.pos[row * tree.dims + d] : From{0};
    // What is inside by its own precision needs no look in float64.
    double period = scale.raw_period[d];
    if (period > 0 && !(given >= 0 && given < static_cast<From>(period))) {
      JZTREE_COUNT("wrap");
      given = wrap(given, period);
    }
    x[d] = static_cast<T>(given) * scale.factor;
  }
}

template <int W, typename From, typename T>
__device__ __forceinline__ void load_box(const TreeView<From>& tree, const Scale<W, T>& scale, int64_t node, T* low,
                                         T* high) {
#pragma unroll
  for (int d = 0; d < W; ++d) {
    low[d] = d < tree.dims ? static_cast<T>(tree.lower[node * tree.dims + d]) * scale.factor : T{0};
    high[d] = d < tree.dims ? static_cast<T>(tree.upper[node * tree.dims + d]) * scale.factor : T{0};
  }
}

// Lower bound of the squared distance between two boxes. "Around the boundary" is rounded in the last bit of the
// period, which a factor on the gap does not cover.
template <int W, typename T>
__device__ __forceinline__ T box_distance2(const Scale<W, T>& scale, const T* alow, const T* ahigh, const T* blow,
                                           const T* bhigh) {
  T sum = 0;
  if (scale.periodic) {
#pragma unroll
    for (int d = 0; d < W; ++d) {
      T gap = interval_gap<T>(alow[d], ahigh[d], blow[d], bhigh[d], scale.period[d] * below_one<T>);
      sum += gap * gap;
    }
  } else {
    JZTREE_COUNT("open box");
#pragma unroll
    for (int d = 0; d < W; ++d) {
      T gap = larger<T>(larger<T>(blow[d] - ahigh[d], alow[d] - bhigh[d]), T{0});
      sum += gap * gap;
    }
  }
  return sum * below_one<T>;
}

// What is still to be visited: children of a node, 32 at a time, or a leaf.
template <typename T>
struct StackEntry {
  T distance2;            // lower bound for the whole group
  uint32_t row_plus_one;  // of its first particle
  uint32_t node;
  uint32_t plane, chunk;
};

// A node leaves at most 32 children and one entry for the rest of them behind in each plane, whatever the fan-out is.
JZTREE_BOTH inline int64_t stack_entries(int planes) { return (warp_size + 1) * static_cast<int64_t>(planes) + 1; }

// All lanes hold the same values, and do the same but for the children that they look at.
template <int W, typename From, typename T>
class WarpWalk {
 public:
  // low, high: the box of the group. stack: shared memory of this warp.
  __device__ __forceinline__ WarpWalk(const TreeView<From>& tree, const Scale<W, T>& scale, StackEntry<T>* stack,
                                      const T* low, const T* high)
      : tree_(tree), scale_(scale), stack_(stack), size_(1) {
#pragma unroll
    for (int d = 0; d < W; ++d) {
      low_[d] = low[d];
      high_[d] = high[d];
      centre_[d] = low[d] / 2 + high[d] / 2;
    }
    // The nodes of the top plane are the children of a node above it.
    if (lane_index() == 0) stack_[0] = {T{0}, 0, 0, static_cast<uint32_t>(tree.planes), 0};
    __syncwarp();
  }

  // The next leaf that may hold a candidate below `worst`, or -1.
  __device__ __forceinline__ int64_t next_leaf(const Candidate<T>& worst) {
    while (size_ > 0) {
      JZTREE_COUNT("pop");
      StackEntry<T> entry = stack_[--size_];
      __syncwarp();
      if (!(Candidate<T>::make(entry.distance2, entry.row_plus_one) < worst)) continue;
      if (entry.plane == 0) return entry.node;
      push_children(entry, worst);
    }
    return -1;
  }

 private:
  __device__ __forceinline__ void push_children(const StackEntry<T>& entry, const Candidate<T>& worst) {
    JZTREE_COUNT("push children");
    int plane = static_cast<int>(entry.plane) - 1;
    bool top = plane + 1 == tree_.planes;
    int64_t begin = top ? tree_.starts[plane] : tree_.first_child(plane + 1, entry.node);
    int64_t end = top ? tree_.starts[plane + 1] : tree_.first_child(plane + 1, entry.node + 1);
    begin += static_cast<int64_t>(entry.chunk) * warp_size;
    if (end - begin > warp_size) {
      JZTREE_COUNT("push rest of children");
      if (lane_index() == 0) {
        stack_[size_] = entry;
        ++stack_[size_].chunk;
      }
      ++size_;
    }
    push_nodes(plane, begin + lane_index(), begin + lane_index() < end, worst);
  }

  // Each lane brings a node. Those that may matter are pushed, the nearest to the group's centre last, so that it is
  // visited first.
  __device__ __forceinline__ void push_nodes(int plane, int64_t node, bool exists, const Candidate<T>& worst) {
    T near2 = 0;
    StackEntry<T> entry{};
    if (exists) {
      int64_t row = tree_.first_row(plane, node);
      T low[W], high[W];
      load_box(tree_, scale_, node, low, high);
      entry = {box_distance2(scale_, low_, high_, low, high), static_cast<uint32_t>(row + 1),
               static_cast<uint32_t>(node), static_cast<uint32_t>(plane), 0};
      near2 = box_distance2(scale_, centre_, centre_, low, high);
      exists =
          tree_.first_row(plane, node + 1) > row && Candidate<T>::make(entry.distance2, entry.row_plus_one) < worst;
    }
    unsigned wanted = __ballot_sync(all_lanes, exists);
    int behind = 0;  // how many are to be visited after this lane's
    for (unsigned rest = wanted; rest != 0; rest &= rest - 1) {
      JZTREE_COUNT("rank a child");
      int lane = __ffs(static_cast<int>(rest)) - 1;
      T other = __shfl_sync(all_lanes, near2, lane);
      behind += other > near2 || (other == near2 && lane > lane_index());
    }
    if (exists) stack_[size_ + behind] = entry;
    size_ += __popc(wanted);
    __syncwarp();
  }

  const TreeView<From>& tree_;
  const Scale<W, T>& scale_;
  StackEntry<T>* stack_;
  int size_;
  T low_[W], high_[W], centre_[W];
};

// How distances between a group and a leaf are computed: plain differences, once queries or sources are shifted to
// their nearest images where one shift does for all pairs, else pair by pair.
template <int W, typename T>
struct Images {
  T query_shift[W], query_rest[W], source_shift[W], source_rest[W];
  bool pairwise;

  __device__ __forceinline__ Images(const Scale<W, T>& scale, const T* qlow, const T* qhigh, const T* xlow,
                                    const T* xhigh) {
    pairwise = false;
#pragma unroll
    for (int d = 0; d < W; ++d) query_shift[d] = query_rest[d] = source_shift[d] = source_rest[d] = 0;
    if (!scale.periodic) return;
#pragma unroll
    for (int d = 0; d < W; ++d)
      pairwise |= nearest_image(qlow[d], qhigh[d], xlow[d], xhigh[d], scale.period[d]) == Image::depends;
    if (pairwise) return;
    JZTREE_COUNT("shift to nearest image");
#pragma unroll
    for (int d = 0; d < W; ++d) {
      Image image = nearest_image(qlow[d], qhigh[d], xlow[d], xhigh[d], scale.period[d]);
      if (image == Image::shift_query) query_shift[d] = scale.period[d], query_rest[d] = scale.period_rest[d];
      if (image == Image::shift_source) source_shift[d] = scale.period[d], source_rest[d] = scale.period_rest[d];
    }
  }
};

template <int W, bool Pairwise, typename T>
__device__ __forceinline__ T distance2(const Scale<W, T>& scale, const T* q, const T* x) {
  T sum = 0;
#pragma unroll
  for (int d = 0; d < W; ++d) {
    T difference = Pairwise ? wrapped_difference<T>(q[d], x[d], scale.period[d], scale.period_rest[d]) : q[d] - x[d];
    sum = d == 0 ? difference * difference : sum + difference * difference;
  }
  return sum;
}

}  // namespace jztree
