// Boxes of nodes and points of rows, in the form that kernels use for distances.
#pragma once

#include <cstdint>
#include <limits>

#include "common/distance_rule.h"
#include "common/geometry.h"
#include "common/morton.h"
#include "common/scale.h"
#include "tree.cuh"
#include "warp.cuh"

namespace jztree {

// The data on the GPU that kernels need about the periodic box and its contents.
template <int D, typename T>
struct BoxSetup {
  Scale<D, T> scale;
  bool wrapped;     // whether any particle is outside its periodic box
  T gap_period[D];  // for lower bounds: a distance around the boundary is rounded in the last bit of the period

  // Run by one warp. a, b: the hierarchies whose distances are needed. From: the dtype of their positions, which may be
  // narrower than T.
  template <typename From>
  __device__ BoxSetup(const Lengths& box, const DeviceTree<D, From>& a, const DeviceTree<D, From>& b,
                      const int32_t* any_wrapped)
      : scale(scale_between<T>(box, a, b)), wrapped(*any_wrapped != 0) {
    for (int d = 0; d < D; ++d) gap_period[d] = scale.period[d] * below_one<T>;
  }

  // A coordinate can become 0 only if it is scaled down.
  __device__ DistanceRule<D, T> distance_rule() const { return DistanceRule<D, T>(wrapped, scale.factor >= 1, scale); }
};

// Scaled, and wrapped in periodic dimensions.
template <int D, typename T>
struct NodeBox {
  T low[D], high[D];

  __device__ T extent() const {
    T widest = 0;
    for (int d = 0; d < D; ++d) widest = larger<T>(widest, high[d] - low[d]);
    return widest;
  }
};

// Aligned so that the GPU reads a row from shared memory at once.
template <int D, typename T>
struct alignas(D * sizeof(T) <= 4   ? 4
               : D * sizeof(T) <= 8 ? 8
                                    : 16) RowPoint {
  T x[D];
};

// From one point to another in one dimension. Around: the nearest image must be found.
template <bool Around, int D, typename T>
__device__ inline T difference(const RowPoint<D, T>& a, const RowPoint<D, T>& b, int d, const Scale<D, T>& scale) {
  if (Around) return wrapped_difference<T>(a.x[d], b.x[d], scale.period[d], scale.period_rest[d]);
  return a.x[d] - b.x[d];
}

template <bool Around, int D, typename T>
__device__ inline T squared_distance(const RowPoint<D, T>& a, const RowPoint<D, T>& b, const Scale<D, T>& scale) {
  T sum = 0;
  for (int d = 0; d < D; ++d) {
    T apart = difference<Around>(a, b, d, scale);
    sum += apart * apart;
  }
  return sum;
}

// Select coordinate by coordinate: a selection between two addresses would move both points from registers to memory.
template <int D, typename T>
__device__ inline RowPoint<D, T> either(bool first, const RowPoint<D, T>& a, const RowPoint<D, T>& b) {
  RowPoint<D, T> out;
  for (int d = 0; d < D; ++d) out.x[d] = first ? a.x[d] : b.x[d];
  return out;
}

// From: the dtype of the positions, which may be narrower than T.
template <int D, typename T, typename From>
__device__ inline NodeBox<D, T> load_box(const DeviceTree<D, From>& tree, int64_t node, T factor) {
  NodeBox<D, T> box;
  for (int d = 0; d < D; ++d) {
    box.low[d] = static_cast<T>(tree.lower[node * D + d]) * factor;
    box.high[d] = static_cast<T>(tree.upper[node * D + d]) * factor;
  }
  return box;
}

// A particle, wrapped and scaled.
template <int D, typename T, typename From>
__device__ inline RowPoint<D, T> load_point(const From* pos, int64_t row, const Scale<D, T>& scale) {
  RowPoint<D, T> point;
  for (int d = 0; d < D; ++d) point.x[d] = static_cast<T>(wrap(pos[row * D + d], scale.raw_period[d])) * scale.factor;
  return point;
}

// The bounding box of the lanes' points. Lanes without a point do not count.
template <int D, typename T>
__device__ inline NodeBox<D, T> box_of_lanes(const RowPoint<D, T>& point, bool used) {
  constexpr T infinity = std::numeric_limits<T>::infinity();
  NodeBox<D, T> box;
  for (int d = 0; d < D; ++d) {
    box.low[d] = warp_min(used ? point.x[d] : infinity);
    box.high[d] = warp_max(used ? point.x[d] : -infinity);
  }
  return box;
}

// Copy rows into shared memory, up to 32 at a time, for all lanes of a warp to read. Calls work(row, count) after
// copying the `count` rows from `row` on. points: space for one point per lane.
template <int D, typename T, typename Work>
__device__ inline void each_tile(const T* pos, uint32_t first, uint32_t end, const Scale<D, T>& scale,
                                 RowPoint<D, T>* points, const Work& work) {
  for (uint32_t tile = first; tile < end; tile += warp_size) {
    uint32_t row = tile + static_cast<uint32_t>(lane_index());
    __syncwarp();
    if (row < end) points[lane_index()] = load_point(pos, row, scale);
    __syncwarp();
    work(tile, end - tile < warp_size ? end - tile : warp_size);
  }
}

// Rows in the shared memory of a warp, for all lanes to read.
template <int D, typename T>
struct StagedRows {
  RowPoint<D, T> point[warp_size];
  uint32_t row[warp_size];

  // Take up to 32 rows from `tile` on and before `end`, in order, except those that are not needed. Returns the number
  // of taken rows. needed(row, point): whether the lane's row is needed. stage(place): the lane's row has this place.
  template <typename From, typename Needed, typename Stage>
  __device__ int take(const From* pos, uint32_t tile, uint32_t end, const Scale<D, T>& scale, const Needed& needed,
                      const Stage& stage) {
    const uint32_t lane_row = tile + static_cast<uint32_t>(lane_index());
    RowPoint<D, T> lane_point;
    bool is_needed = lane_row < end;
    if (is_needed) {
      lane_point = load_point(pos, lane_row, scale);
      is_needed = needed(lane_row, lane_point);
    }
    __syncwarp();
    const unsigned taken = __ballot_sync(all_lanes, is_needed);
    if (is_needed) {
      const int place = __popc(taken & ((1u << lane_index()) - 1));
      point[place] = lane_point;
      row[place] = lane_row;
      stage(place);
    }
    __syncwarp();
    return __popc(taken);
  }
};

// A lower limit of the squared distance between points of the two boxes.
template <int D, typename T>
__device__ inline T least_distance2(const T* alow, const T* ahigh, const NodeBox<D, T>& b, const T* gap_period) {
  T sum = 0;
  for (int d = 0; d < D; ++d) {
    T gap = interval_gap<T>(alow[d], ahigh[d], b.low[d], b.high[d], gap_period[d]);
    sum += gap * gap;
  }
  return sum * below_one<T>;
}

// Whether plain differences may differ from those of the nearest images for some pair of the two boxes.
template <int D, typename T>
__device__ inline bool wraps_around(const NodeBox<D, T>& a, const NodeBox<D, T>& b, const Scale<D, T>& scale) {
  return scale.periodic && wraps_around<D>(a.low, a.high, b.low, b.high, scale.period);
}

}  // namespace jztree
