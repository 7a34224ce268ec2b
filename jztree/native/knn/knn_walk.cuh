// A warp's walk through the planes of the sources, nearest nodes first, for a group of queries that are near each
// other. Coordinates are padded with zeros to W dimensions, so that few kernels serve all dimensions.
//
// The 32 lanes test 32 nodes at a time. The walk may skip planes on its way down, because the descendants of a node in
// any lower plane are contiguous: with 8 children per node, two planes at once fill the lanes.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "common/cuda/tree.cuh"
#include "common/cuda/warp.cuh"
#include "common/geometry.h"
#include "common/morton.h"
#include "common/scale.h"
#include "knn_lists.cuh"

namespace jztree {

// A compile-time constant for the widths that serve only one number of dimensions.
template <int W, typename From>
__device__ __forceinline__ int dims_of(const TreeView<From>& tree) {
  return W == 3 || W == 4 ? W : tree.dims;
}

// How to wrap and scale coordinates.
template <int W, typename From, typename T>
class Staging {
  using Bits = std::conditional_t<sizeof(From) == sizeof(uint32_t), uint32_t, uint64_t>;

 public:
  __device__ __forceinline__ explicit Staging(const Scale<W, T>& scale) : scale_(scale), factor_(scale.factor) {
#pragma unroll
    for (int d = 0; d < W; ++d)
      inside_[d] = scale.raw_period[d] > 0 ? bits(static_cast<From>(scale.raw_period[d])) : ~Bits{0};
  }

  // The wrapped and scaled coordinates of a row, the same as on the CPU; 0 in dimensions that the tree does not have.
  __device__ __forceinline__ void point(const TreeView<From>& tree, uint32_t row, T* x) const {
    const From* pos = tree.pos + static_cast<int64_t>(row) * dims_of<W>(tree);
    const T factor = factor_;
    bool inside = true;
#pragma unroll
    for (int d = 0; d < W; ++d) {
      const From coordinate = d < dims_of<W>(tree) ? pos[d] : From{0};
      inside &= bits(coordinate) < inside_[d];
      x[d] = static_cast<T>(coordinate) * factor;
    }
    // Coordinates inside the period by their own precision need no test in float64. (Negative numbers have large bits.)
    if (inside) return;
    JZTREE_COUNT("wrap");
#pragma unroll
    for (int d = 0; d < W; ++d)
      if (d < dims_of<W>(tree)) x[d] = static_cast<T>(wrap_apart(pos[d], scale_.raw_period[d])) * factor;
  }

  // The rounding errors of wrapped coordinates. Returns whether any is not 0.
  __device__ __forceinline__ bool find_rests(const TreeView<From>& tree, uint32_t row, T* errors) const {
    return rests_of(scale_, tree, row, errors);
  }

  // The largest error of the distance between two boxes if rows were wrapped.
  __device__ __forceinline__ T rounding(int d) const {
    return scale_.raw_period[d] > 0 ? scale_.period[d] * static_cast<T>(2 * std::numeric_limits<From>::epsilon())
                                    : T{0};
  }

  // One dimension of the box of a node.
  __device__ __forceinline__ void side(const TreeView<From>& tree, uint32_t node, int d, T* low, T* high) const {
    const int64_t place = static_cast<int64_t>(node) * dims_of<W>(tree) + d;
    *low = d < dims_of<W>(tree) ? static_cast<T>(tree.lower[place]) * factor_ : T{0};
    *high = d < dims_of<W>(tree) ? static_cast<T>(tree.upper[place]) * factor_ : T{0};
  }

 private:
  __device__ static uint32_t bits(float x) { return static_cast<uint32_t>(__float_as_int(x)); }
  __device__ static uint64_t bits(double x) { return static_cast<uint64_t>(__double_as_longlong(x)); }

  // Never inlined, because it is rare: inlined, it would move the coordinates to local memory.
  JZTREE_APART static From wrap_apart(From x, double period) { return wrap(x, period); }

  // Never inlined, because only rows outside their periodic box have any. Without the address of this object: otherwise
  // the compiler would keep the whole search, including its lists, in local memory.
  JZTREE_APART static bool rests_of(const Scale<W, T>& scale, const TreeView<From>& tree, uint32_t row, T* errors) {
    const From* pos = tree.pos + static_cast<int64_t>(row) * dims_of<W>(tree);
    bool any = false;
    for (int d = 0; d < W; ++d) {
      errors[d] = d < dims_of<W>(tree) ? rest_of_wrap(pos[d], scale.raw_period[d], scale.factor) : T{0};
      any |= errors[d] != 0;
    }
    return any;
  }

  const Scale<W, T>& scale_;
  T factor_;
  Bits inside_[W];  // the bits of the period; for open dimensions, no number has higher bits
};

// The boxes that cover a group of queries.
template <int W, int Boxes, typename T>
struct alignas(16) Group {
  T low[Boxes][W], high[Boxes][W], half[Boxes][W];
  T around[W];  // the period, reduced by the possible rounding of a distance around the boundary
  // Up to this squared distance from a box, sources are nearest straight, not around the boundary. Negative: no such
  // distance.
  T straight2;

  __device__ __forceinline__ explicit Group(const Scale<W, T>& scale) {
#pragma unroll
    for (int d = 0; d < W; ++d) around[d] = scale.period[d] * below_one<T>;
  }

  // All lanes pass the same point.
  __device__ __forceinline__ void cover(int box, const T* x) {
#pragma unroll
    for (int d = 0; d < W; ++d) low[box][d] = high[box][d] = x[d];
  }

  // The points of the lanes that take part; if no lane does, nothing is near the box.
  __device__ __forceinline__ void cover(int box, const T* x, bool takes_part) {
#pragma unroll
    for (int d = 0; d < W; ++d) {
      low[box][d] = takes_part ? x[d] : std::numeric_limits<T>::infinity();
      high[box][d] = takes_part ? x[d] : -std::numeric_limits<T>::infinity();
      for (int flip = warp_size / 2; flip > 0; flip /= 2) {
        low[box][d] = std::fmin(low[box][d], __shfl_xor_sync(all_lanes, low[box][d], flip));
        high[box][d] = std::fmax(high[box][d], __shfl_xor_sync(all_lanes, high[box][d], flip));
      }
    }
  }

  // Widen the boxes for positions that were rounded when they were wrapped.
  template <typename From>
  __device__ __forceinline__ void widen(const Staging<W, From, T>& staging) {
    for (int box = 0; box < Boxes; ++box) {
#pragma unroll
      for (int d = 0; d < W; ++d) {
        low[box][d] -= staging.rounding(d);
        high[box][d] += staging.rounding(d);
      }
    }
  }

  // Set the other members, after all boxes are set.
  __device__ __forceinline__ void complete() {
    T nearest = std::numeric_limits<T>::infinity();
#pragma unroll
    for (int d = 0; d < W; ++d) {
      bool open = around[d] == std::numeric_limits<T>::infinity();
      for (int box = 0; box < Boxes; ++box) {
        if (!open) nearest = std::fmin(nearest, std::fmin(low[box][d], around[d] - high[box][d]));
        half[box][d] = std::fmax(high[box][d] / 2 - low[box][d] / 2, T{0});
      }
    }
    straight2 = nearest > 0 ? nearest * nearest * below_one<T> : T{-1};
  }
};

// Limits of the candidates that a group still needs: the worst of its queries' bounds, and for each box the largest
// squared distance of any query in it.
template <int Boxes, typename T>
struct Wanted {
  Candidate<T> worst;
  T worst2[Boxes];
};

// The combined limits of the lanes' queries. second: whether the lane's query is in the second box.
__device__ __forceinline__ Wanted<2, float> wanted_of(const Candidate<float>& bound, bool second) {
  // Words with the sign bit flipped sort like signed ones.
  constexpr uint32_t sign = 0x80000000u;
  uint32_t word = static_cast<uint32_t>(bound.bits) ^ sign;
  uint32_t first_word = warp_max_word(second ? 0 : word), second_word = warp_max_word(second ? word : 0);
  uint32_t largest = first_word > second_word ? first_word : second_word;
  return {{warp_max_word(word == largest ? bound.row : 0), static_cast<int32_t>(largest ^ sign)},
          {__int_as_float(static_cast<int32_t>(first_word ^ sign)),
           __int_as_float(static_cast<int32_t>(second_word ^ sign))}};
}

__device__ __forceinline__ Wanted<2, double> wanted_of(const Candidate<double>& bound, bool second) {
  Candidate<double> worst = bound;
  for (int flip = warp_size / 2; flip > 0; flip /= 2) {
    Candidate<double> other = shuffled(worst, flip);
    worst = choose(worst < other, other, worst);
  }
  return {worst, {warp_max(second ? -1. : bound.distance2()), warp_max(second ? bound.distance2() : -1.)}};
}

// Nodes still to be visited: the nodes of a plane from `node` up to `last`; or, if `last` is 0, the descendants of
// `node` in a lower plane. An entry does not store the first row of its node, because shared memory limits the number
// of warps.
template <typename T>
struct alignas(sizeof(T) == sizeof(float) ? 16 : 8) StackEntry {
  T nearest2;  // lower bound for the whole group
  uint32_t node, plane, last;
};

// In each plane above the leaves, a node leaves at most 32 nodes and one entry for the remaining ones. Leaves are not
// pushed.
JZTREE_BOTH constexpr int64_t stack_entries(int planes) { return (warp_size + 1) * (int64_t{planes} - 1) + 2; }

// The rows of a leaf that are not processed yet.
struct LeafRows {
  uint32_t row = 0, end = 0;
};

// All lanes hold the same values and do the same, except for the nodes that they test.
template <int W, int Boxes, typename From, typename T>
class WarpWalk {
 public:
  // stack: shared memory of this warp. stops: one bit per plane, set if its nodes are tested once there is a bound;
  // other planes are skipped.
  __device__ __forceinline__ WarpWalk(const TreeView<From>& tree, const Staging<W, From, T>& staging,
                                      const Group<W, Boxes, T>& group, StackEntry<T>* stack, uint32_t stops)
      : tree_(tree), staging_(staging), group_(group), stack_(stack), stops_(stops), size_(1), order_(none) {
    // The nodes of the top plane are the children of a node above it.
    if (lane_index() == 0) stack_[0] = {0, 0, static_cast<uint32_t>(tree.planes), 0};
    __syncwarp();
  }

  // Find the rows of the next leaf that may hold needed candidates. Returns false after the last such leaf.
  __device__ __forceinline__ bool next_leaf(const Wanted<Boxes, T>& wanted, LeafRows* leaf) {
    while (!pick_leaf(wanted, leaf)) {
      do {
        if (size_ == 0) return false;
      } while (!look_below(wanted));
    }
    return true;
  }

 private:
  static constexpr unsigned none = 0xffffffffu;

  // The nearest of the leaves that the lanes hold.
  __device__ __forceinline__ bool pick_leaf(const Wanted<Boxes, T>& wanted, LeafRows* leaf) {
    JZTREE_COUNT("pick leaf");
    if (!(nearest_ < wanted.worst)) order_ = none;
    unsigned first = warp_min_word(order_);
    if (first == none) return false;
    JZTREE_COUNT("leaf");
    int lane = static_cast<int>(first & (warp_size - 1));
    if (lane == lane_index()) order_ = none;
    leaf->row = __shfl_sync(all_lanes, begin_, lane);
    leaf->end = __shfl_sync(all_lanes, end_, lane);
    return true;
  }

  // Returns whether the lanes hold leaves.
  __device__ __forceinline__ bool look_below(const Wanted<Boxes, T>& wanted) {
    JZTREE_COUNT("pop");
    StackEntry<T> entry = stack_[--size_];
    __syncwarp();
    if (!may_hold(entry, wanted.worst)) return false;
    JZTREE_COUNT("look below");
    int plane = static_cast<int>(entry.plane);
    uint32_t first = entry.node, last = entry.last;
    if (last == 0) {
      int above = plane;
      // Without a bound, reach the nearest leaf quickly instead of testing all nodes next to it.
      uint32_t stops = wanted.worst.row_plus_one() == no_row ? ~0u : stops_;
      plane = 31 - __clz(static_cast<int>(stops & ((1u << (above - 1) << 1) - 1)));
      nodes_below(above, entry.node, plane, &first, &last);
    }
    if (last - first > warp_size) {
      JZTREE_COUNT("rest of nodes");
      if (lane_index() == 0) stack_[size_] = {entry.nearest2, first + warp_size, static_cast<uint32_t>(plane), last};
      ++size_;
      __syncwarp();  // leaves are not pushed, so all lanes may read this entry next
    }
    uint32_t node = first + static_cast<uint32_t>(lane_index());
    look_at(plane, node, node < last, wanted);
    if (plane > 0) push(plane, node);
    return plane == 0;
  }

  // Whether the nodes of an entry may hold a candidate before `worst`. At equal distances, the first row decides.
  __device__ __forceinline__ bool may_hold(const StackEntry<T>& entry, const Candidate<T>& worst) const {
    if (entry.nearest2 != worst.distance2() || entry.plane == static_cast<uint32_t>(tree_.planes))
      return entry.nearest2 <= worst.distance2();
    JZTREE_COUNT("pop of a tie");
    auto row = static_cast<uint32_t>(tree_.particle_splits[entry.node + entry.plane]);
    return row + 1 < worst.row_plus_one();
  }

  // The nodes of a lower plane that descend from a node.
  __device__ __forceinline__ void nodes_below(int above, uint32_t node, int plane, uint32_t* first,
                                              uint32_t* last) const {
    if (above == tree_.planes) {
      JZTREE_COUNT("top plane");
      *first = static_cast<uint32_t>(tree_.starts[plane]);
      *last = static_cast<uint32_t>(tree_.starts[plane + 1]);
      return;
    }
    *first = node;
    *last = node + 1;
#pragma unroll 1
    for (; above > plane; --above) {
      JZTREE_COUNT("plane below");
      auto start = static_cast<uint32_t>(tree_.starts[above - 1]);
      *first = start + static_cast<uint32_t>(tree_.splits[*first + static_cast<uint32_t>(above)]);
      *last = start + static_cast<uint32_t>(tree_.splits[*last + static_cast<uint32_t>(above)]);
    }
  }

  // Each lane tests a node. Nodes are ordered by the distance from the centre of the nearest box, then by lane.
  __device__ __forceinline__ void look_at(int plane, uint32_t node, bool exists, const Wanted<Boxes, T>& wanted) {
    nearest_ = no_candidate<T>();
    T near2 = std::numeric_limits<T>::infinity();
    if (exists) {
      const Group<W, Boxes, T> group = group_;
      const bool straight = wanted.worst.distance2() <= group.straight2;
      T least2 = std::numeric_limits<T>::infinity(), gaps2[Boxes] = {}, nears2[Boxes] = {};
      begin_ = static_cast<uint32_t>(tree_.particle_splits[node + static_cast<uint32_t>(plane)]);
      end_ = static_cast<uint32_t>(tree_.particle_splits[node + static_cast<uint32_t>(plane) + 1]);
#pragma unroll
      for (int d = 0; d < W; ++d) {
        T low, high;
        staging_.side(tree_, node, d, &low, &high);
#pragma unroll
        for (int box = 0; box < Boxes; ++box) {
          const T right = low - group.high[box][d], left = group.low[box][d] - high;
          T gap = std::fmax(right, left);
          if (!straight) gap = std::fmin(gap, std::fmin(right, left) + group.around[d]);
          T centre_gap = std::fmax(gap + group.half[box][d], T{0});
          gap = std::fmax(gap, T{0});
          gaps2[box] += gap * gap;
          nears2[box] += centre_gap * centre_gap;
        }
      }
#pragma unroll
      for (int box = 0; box < Boxes; ++box) {
        gaps2[box] *= below_one<T>;
        if (gaps2[box] <= wanted.worst2[box]) least2 = std::fmin(least2, gaps2[box]);
        near2 = std::fmin(near2, nears2[box]);
      }
      if (end_ > begin_) nearest_ = Candidate<T>::make(least2, begin_ + 1);
    }
    order_ = nearest_ < wanted.worst ? order_word(near2) : none;
  }

  // Five bits fewer than a float.
  __device__ static unsigned order_word(T near2) {
    auto bits = static_cast<unsigned>(__float_as_int(static_cast<float>(near2)));
    return (bits & ~(warp_size - 1u)) | static_cast<unsigned>(lane_index());
  }

  // Push the nearest last, so that it is visited first.
  __device__ __forceinline__ void push(int plane, uint32_t node) {
    JZTREE_COUNT("push");
    unsigned pending = __ballot_sync(all_lanes, order_ != none);
    int behind = 0;  // number of nodes to visit after this lane's node
    for (unsigned remaining = pending; remaining != 0; remaining &= remaining - 1) {
      JZTREE_COUNT("rank a node");
      behind += __shfl_sync(all_lanes, order_, __ffs(static_cast<int>(remaining)) - 1) > order_;
    }
    if (order_ != none) stack_[size_ + behind] = {nearest_.distance2(), node, static_cast<uint32_t>(plane), 0};
    size_ += __popc(pending);
    order_ = none;
    __syncwarp();
  }

  const TreeView<From>& tree_;
  const Staging<W, From, T>& staging_;
  const Group<W, Boxes, T>& group_;
  StackEntry<T>* stack_;
  uint32_t stops_;
  int size_;
  // Of the nodes that the lanes tested last. Leaves wait here until they are visited.
  Candidate<T> nearest_;
  unsigned order_;
  uint32_t begin_, end_;
};

// q_rest, x_rest: the rounding errors of wrapped positions; null: none.
template <int W, bool Pairwise, typename T>
__device__ __forceinline__ T distance2(const Scale<W, T>& scale, const T* q, const T* x, const T* q_rest = nullptr,
                                       const T* x_rest = nullptr) {
  T sum = 0;
#pragma unroll
  for (int d = 0; d < W; ++d) {
    T difference = Pairwise ? wrapped_difference<T>(q[d], x[d], scale.period[d], scale.period_rest[d]) : q[d] - x[d];
    // The order of operations makes the first sum exact next to a face.
    if (q_rest) difference = (difference + q_rest[d]) - x_rest[d];
    sum = d == 0 ? difference * difference : sum + difference * difference;
  }
  return sum;
}

}  // namespace jztree
