// Distances between boxes in wrapped coordinates, in float64. They decide which particles a rank sends to other ranks.
#pragma once

#include <cmath>
#include <limits>

#include "geometry.h"
#include "partition.h"
#include "portable.h"

namespace jztree {

template <int D>
struct Space {
  double period[D];  // infinite for open dimensions
  double rounding;   // of wrapped coordinates, and of the smallest radii, of type T

  template <typename T>
  JZTREE_BOTH Space(const double* box, T) : rounding(static_cast<double>(std::numeric_limits<T>::denorm_min())) {
    for (int d = 0; d < D; ++d) {
      period[d] = box[d] > 0 ? box[d] : std::numeric_limits<double>::infinity();
      rounding += 4 * static_cast<double>(std::numeric_limits<T>::epsilon()) * box[d];
    }
  }

  // Squares of lengths below this lose digits or underflow. It is negligible compared with all other lengths.
  static constexpr double vanishing = 1e-155;

  // A radius of type T that is surely large enough for distances computed here.
  template <typename T>
  JZTREE_BOTH double enlarged(T radius) const {
    return static_cast<double>(radius) * (1 + 32 * static_cast<double>(std::numeric_limits<T>::epsilon())) +
           (rounding + vanishing);
  }

  // Squared smallest distance between two boxes. It never grows when a box grows, including rounding.
  template <typename T>
  JZTREE_BOTH double gap2(const T* alow, const T* ahigh, const T* blow, const T* bhigh) const {
    double sum = 0;
    for (int d = 0; d < D; ++d) {
      double gap = interval_gap<double>(alow[d], ahigh[d], blow[d], bhigh[d], period[d]);
      sum += gap * gap;
    }
    return sum;
  }

  // An upper limit of the distances between points of two boxes.
  template <typename T>
  JZTREE_BOTH double reach(const T* alow, const T* ahigh, const T* blow, const T* bhigh) const {
    double sum = 0;
    for (int d = 0; d < D; ++d) {
      double most = interval_reach<double>(alow[d], ahigh[d], blow[d], bhigh[d], period[d]);
      sum += most * most;
    }
    return std::sqrt(sum) * (1 + 1e-12) + 2 * (rounding + vanishing);
  }
};

// Whether a squared distance is that of a point within a radius.
JZTREE_BOTH inline bool within(double gap2, double radius) { return gap2 <= radius * radius; }

// The item of a partition of rows that contains a row. splits: `count` + 1 entries.
JZTREE_BOTH inline int64_t item_over(const int32_t* splits, int64_t count, int32_t row) {
  const int64_t after = partition_point(0, count + 1, [&](int64_t item) { return splits[item] <= row; });
  return after > 0 ? after - 1 : 0;
}

}  // namespace jztree
