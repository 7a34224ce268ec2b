// A hierarchy and its particles laid out for vector loops: one array a dimension, periodic coordinates wrapped into the
// box, everything scaled by one power of two.
//
// The scale depends on the extent of the set, so that squared distances neither overflow nor vanish whatever the unit
// of length; a power of two changes no digit.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>

#include "../common/geometry.h"
#include "../common/morton.h"
#include "../common/tree_layout.h"
#include "lanes.h"
#include "parallel.h"

namespace jztree {

template <int D, typename T>
struct TreeArrays {
  const T* pos;  // (n, D), z-ordered, as the caller gave them
  int64_t num;
  const int32_t *splits, *particle_splits;
  const T *lower, *upper;  // (nodes, D), of wrapped positions
  TreeLayout layout;
};

// The common scale of two hierarchies whose distances are wanted (twice the same one, for distances within it). They
// may be parts of a wider set, whose open extent is then given, so that all parts decide alike where precision is lost.
template <int D, typename T>
struct Scale {
  T factor, inverse;
  T period[D];       // scaled; infinite where open
  T period_rest[D];  // what rounding to T took off the scaled period
  double raw_period[D];
  bool periodic;  // in any dimension

  template <typename From>
  Scale(const double* box, const TreeArrays<D, From>& a, const TreeArrays<D, From>& b, double extent = 0) {
    periodic = false;
    for (int d = 0; d < D; ++d) {
      raw_period[d] = box[d];
      periodic |= box[d] > 0;
      extent = std::max(extent, box[d] > 0 ? box[d] : open_extent(d, a, b));
    }
    int exponent = scale_exponent(extent);
    factor = static_cast<T>(std::ldexp(1., exponent));
    inverse = static_cast<T>(std::ldexp(1., -exponent));
    for (int d = 0; d < D; ++d) {
      T length = static_cast<T>(box[d]);
      period[d] = box[d] > 0 ? length * factor : std::numeric_limits<T>::infinity();
      period_rest[d] = static_cast<T>(box[d] - static_cast<double>(length)) * factor;
    }
  }

 private:
  // Extents are scaled to 2^40 (float64: 2^400), which leaves room for the squares above and far more below, where
  // distances may be many orders of magnitude smaller than the extent.
  static int scale_exponent(double extent) {
    constexpr bool narrow = std::is_same<T, float>::value;
    constexpr int limit = narrow ? 100 : 1000, target = narrow ? 40 : 400;
    if (!(extent > 0)) return 0;
    if (!std::isfinite(extent)) return -limit;
    int exponent = 0;
    std::frexp(extent, &exponent);
    return std::max(-limit, std::min(limit, target - exponent));
  }

  template <typename From>
  static double open_extent(int d, const TreeArrays<D, From>& a, const TreeArrays<D, From>& b) {
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (const TreeArrays<D, From>* tree : {&a, &b})
      for (int64_t node = tree->layout.starts.back() - tree->layout.sizes.back(); node < tree->layout.nodes(); ++node) {
        low = std::min(low, static_cast<double>(tree->lower[node * D + d]));
        high = std::max(high, static_cast<double>(tree->upper[node * D + d]));
      }
    return high >= low ? high - low : 0;
  }
};

template <int D, typename T>
class StagedTree {
 public:
  T* x[D];              // [row]
  T *low[D], *high[D];  // [node], all planes

  // From: the dtype of the positions, which T may be wider than.
  template <typename From>
  StagedTree(const Parallel& parallel, const TreeArrays<D, From>& tree, const Scale<D, T>& scale)
      : layout_(tree.layout), splits_(tree.splits), particle_splits_(tree.particle_splits) {
    int64_t rows = tree.num + lanes, nodes = layout_.nodes() + lanes;
    storage_.reset(new T[static_cast<size_t>(D * (rows + 2 * nodes))]);
    for (int d = 0; d < D; ++d) {
      x[d] = storage_.get() + d * rows;
      low[d] = storage_.get() + D * rows + 2 * d * nodes;
      high[d] = low[d] + nodes;
      std::fill(x[d] + tree.num, x[d] + rows, std::numeric_limits<T>::infinity());
      std::fill(low[d] + layout_.nodes(), low[d] + nodes, std::numeric_limits<T>::infinity());
      std::fill(high[d] + layout_.nodes(), high[d] + nodes, std::numeric_limits<T>::infinity());
    }
    stage_nodes(parallel, tree, scale);
    stage_rows(parallel, tree, scale);
  }

  // Whether any particle was outside its periodic box, so that its staged position is rounded to the box's precision.
  bool wrapped() const { return wrapped_.load(); }

  const TreeLayout& layout() const { return layout_; }
  int64_t leaves() const { return layout_.sizes[0]; }
  // First row of a leaf; leaf_row(leaves()) is the end.
  int64_t leaf_row(int64_t leaf) const { return particle_splits_[leaf]; }
  // First child of node i of a plane, i counted within the plane.
  int64_t first_child(int plane, int64_t i) const { return splits_[layout_.split_start(plane) + i]; }
  int64_t first_row(int plane, int64_t i) const { return particle_splits_[layout_.split_start(plane) + i]; }

 private:
  template <typename From>
  void stage_nodes(const Parallel& parallel, const TreeArrays<D, From>& tree, const Scale<D, T>& scale) {
    parallel.blocks(layout_.nodes(), 1 << 13, [&](int64_t begin, int64_t end) {
      for (int64_t node = begin; node < end; ++node)
        for (int d = 0; d < D; ++d) {
          low[d][node] = static_cast<T>(tree.lower[node * D + d]) * scale.factor;
          high[d][node] = static_cast<T>(tree.upper[node * D + d]) * scale.factor;
        }
    });
  }

  template <typename From>
  void stage_rows(const Parallel& parallel, const TreeArrays<D, From>& tree, const Scale<D, T>& scale) {
    parallel.blocks(tree.num, 1 << 14, [&](int64_t begin, int64_t end) {
      bool moved = false;
      for (int64_t row = begin; row < end; ++row)
        for (int d = 0; d < D; ++d) {
          From given = tree.pos[row * D + d], wrapped = wrap(given, scale.raw_period[d]);
          moved |= wrapped != given;
          x[d][row] = static_cast<T>(wrapped) * scale.factor;
        }
      if (moved) wrapped_.store(true, std::memory_order_relaxed);
    });
  }

  TreeLayout layout_;
  const int32_t *splits_, *particle_splits_;
  std::unique_ptr<T[]> storage_;
  std::atomic<bool> wrapped_{false};
};

}  // namespace jztree
