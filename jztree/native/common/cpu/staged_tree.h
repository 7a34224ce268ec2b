// A hierarchy and its particles laid out for vector loops: one array per dimension, periodic coordinates wrapped into
// the box, everything scaled by one power of two.
//
// Wrapping rounds a coordinate to the precision of the box, which is coarse compared with the distances within a clump
// at a face. A search that needs these distances also keeps the rounding errors: a coordinate is then x + rest.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mutex>
#include <type_traits>
#include <vector>

#include "common/geometry.h"
#include "common/morton.h"
#include "common/scale.h"
#include "common/tree_arguments.h"
#include "lanes.h"
#include "memory.h"
#include "parallel.h"

namespace jztree {

// The span in open dimensions of two hierarchies whose distances are needed (pass the same one twice for distances
// within it).
template <int D, typename From>
OpenSpan open_span(const double* box, const Tree<D, From>& a, const Tree<D, From>& b) {
  OpenSpan span;
  for (int d = 0; d < D; ++d) {
    if (box[d] > 0) continue;
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (const Tree<D, From>* tree : {&a, &b})
      for (int64_t node = tree->layout.starts.back() - tree->layout.sizes.back(); node < tree->layout.nodes(); ++node) {
        low = std::min(low, static_cast<double>(tree->lower[node * D + d]));
        high = std::max(high, static_cast<double>(tree->upper[node * D + d]));
      }
    span.include(low, high);
  }
  return span;
}

// Boxes of nodes, with space for whole blocks of lanes.
template <int D, typename T>
struct NodeBoxes {
  T *low[D], *high[D];  // [node]
};

template <int D, typename T>
class StagedTree : public NodeBoxes<D, T> {
 public:
  T* x[D];  // [row]
  // [row]; null if no row has any
  const T* rest[D] = {};
  // The largest error of x and of box edges; 0 without rests.
  T rounding[D] = {};
  // [node], all planes
  using NodeBoxes<D, T>::low;
  using NodeBoxes<D, T>::high;

  // From: the dtype of the positions, which may be narrower than T. keep_rests: whether to fill `rest`.
  template <typename From>
  StagedTree(const Parallel& parallel, const Tree<D, From>& tree, const Scale<D, T>& scale, bool keep_rests = false)
      : StagedTree(tree, scale) {
    keep_rests_ = keep_rests;
    stride_ = tree.num() + lanes;
    rows_ = Scratch<T>(D * stride_);
    for (int d = 0; d < D; ++d) {
      x[d] = rows_.get() + d * stride_;
      std::fill(x[d] + tree.num(), x[d] + stride_, std::numeric_limits<T>::infinity());
    }
    stage_nodes(parallel, tree);
    stage_rows(parallel, tree);
    if (!rests_.empty()) note_rests<From>(parallel);
  }

  // A hierarchy whose rows are those of a staged one from `first` on. The staged one must outlive it.
  template <typename From>
  StagedTree(const Parallel& parallel, const Tree<D, From>& tree, const StagedTree& whole, int64_t first)
      : StagedTree(tree, whole.scale_) {
    for (int d = 0; d < D; ++d) {
      x[d] = whole.x[d] + first;
      rest[d] = whole.rest[d] ? whole.rest[d] + first : nullptr;
      rounding[d] = whole.rounding[d];
    }
    stage_nodes(parallel, tree);
    if (rest[0]) note_leaves(parallel);
    wrapped_ = whole.wrapped();
    faded_ = !whole.kept();
  }

  // Whether any particle was outside its periodic box, so that its staged position is rounded to the box's precision.
  bool wrapped() const { return wrapped_.load(); }
  // Whether scaling has kept all digits of every coordinate; small coordinates of a wide set lose some.
  bool kept() const { return !faded_.load(); }

  // Whether any staged coordinate may differ from the input coordinate times the factor.
  bool moved_or_faded() const { return wrapped() || !kept(); }
  const Scale<D, T>& scale() const { return scale_; }

  // Whether any row of a leaf has a rest.
  bool has_rests(int64_t leaf) const {
    return !leaf_has_rests_.empty() && leaf_has_rests_[static_cast<size_t>(leaf)] != 0;
  }

  // Whether two rows are at the same place. Staged coordinates cannot show this, because small ones of a wide set
  // become 0 when they are scaled down. For trees of the input dtype.
  bool same_place(int64_t row, const StagedTree& other, int64_t other_row) const {
    for (int d = 0; d < D; ++d)
      if (!same_in_box(given_[row * D + d], other.given_[other_row * D + d], scale_.raw_period[d])) return false;
    return true;
  }

  const TreeLayout& layout() const { return layout_; }
  int64_t leaves() const { return layout_.sizes[0]; }
  // First row of a leaf; leaf_row(leaves()) is the end.
  int64_t leaf_row(int64_t leaf) const { return particle_splits_[leaf]; }
  // First child of node i of a plane, i counted within the plane.
  int64_t first_child(int plane, int64_t i) const { return splits_[layout_.split_start(plane) + i]; }
  // The end of the nodes of a plane that have the same parent as node i.
  int64_t end_of_siblings(int plane, int64_t i) const {
    if (plane == layout_.planes() - 1) return layout_.sizes[static_cast<size_t>(plane)];
    const int32_t* first = splits_ + layout_.split_start(plane + 1);
    return *std::upper_bound(first, first + layout_.sizes[static_cast<size_t>(plane) + 1], i);
  }
  int64_t first_row(int plane, int64_t i) const { return particle_splits_[layout_.split_start(plane) + i]; }

 private:
  // Also reserves space for the nodes.
  template <typename From>
  StagedTree(const Tree<D, From>& tree, const Scale<D, T>& scale)
      : layout_(tree.layout),
        splits_(tree.splits),
        particle_splits_(tree.particle_splits),
        scale_(scale),
        nodes_(2 * D * (layout_.nodes() + lanes)) {
    if constexpr (std::is_same<From, T>::value) given_ = tree.pos;
    const int64_t nodes = layout_.nodes() + lanes;
    for (int d = 0; d < D; ++d) {
      low[d] = nodes_.get() + 2 * d * nodes;
      high[d] = low[d] + nodes;
      std::fill(low[d] + layout_.nodes(), low[d] + nodes, std::numeric_limits<T>::infinity());
      std::fill(high[d] + layout_.nodes(), high[d] + nodes, std::numeric_limits<T>::infinity());
    }
  }

  template <typename From>
  void stage_nodes(const Parallel& parallel, const Tree<D, From>& tree) {
    parallel.blocks(layout_.nodes(), 1 << 13, [&](int64_t begin, int64_t end) {
      for (int64_t node = begin; node < end; ++node)
        for (int d = 0; d < D; ++d) {
          low[d][node] = static_cast<T>(tree.lower[node * D + d]) * scale_.factor;
          high[d][node] = static_cast<T>(tree.upper[node * D + d]) * scale_.factor;
        }
    });
  }

  template <typename From>
  void stage_rows(const Parallel& parallel, const Tree<D, From>& tree) {
    const From* pos = tree.pos;
    parallel.blocks(tree.num(), 1 << 12, [&](int64_t begin, int64_t end) {
      Found found;
      for (int64_t row = begin; row < end; row += chunk) {
        int64_t stop = std::min(end, row + chunk);
        for (int d = 0; d < D; ++d)
          if (!stage_inside(pos, row, stop, d, found)) stage_any(pos, row, stop, d, found);
      }
      if (found.faded) faded_.store(true, std::memory_order_relaxed);
      if (found.moved) wrapped_.store(true, std::memory_order_relaxed);
    });
  }

  static constexpr int64_t chunk = 64;

  struct Found {
    bool moved = false, faded = false;
  };

  static bool fades(T staged, bool zero) { return !zero & (std::fabs(staged) < std::numeric_limits<T>::min()); }

  // Stage one coordinate of some rows, in a vector loop. Returns false, with useless results, if any must be wrapped.
  template <typename From>
  bool stage_inside(const From* pos, int64_t begin, int64_t end, int d, Found& found) {
    const double period = scale_.raw_period[d];
    const bool open = !(period > 0);
    const T factor = scale_.factor;
    T* staged = x[d];
    int outside = 0, faded = 0;
    for (int64_t row = begin; row < end; ++row) {
      From given = pos[row * D + d];
      outside |= !open & !((given >= 0) & (static_cast<double>(given) < period));
      T here = static_cast<T>(given) * factor;
      faded |= fades(here, given == 0);
      staged[row] = here;
    }
    if (outside) return false;
    found.faded |= faded != 0;
    return true;
  }

  template <typename From>
  void stage_any(const From* pos, int64_t begin, int64_t end, int d, Found& found) {
    for (int64_t row = begin; row < end; ++row) {
      From given = pos[row * D + d], wrapped = wrap(given, scale_.raw_period[d]);
      found.moved |= wrapped != given;
      x[d][row] = static_cast<T>(wrapped) * scale_.factor;
      found.faded |= fades(x[d][row], wrapped == 0);
      if (keep_rests_ && wrapped != given) keep_rest(given, row, d);
    }
  }

  template <typename From>
  void keep_rest(From given, int64_t row, int d) {
    const T left = rest_of_wrap(given, scale_.raw_period[d], scale_.factor);
    if (left == 0) return;
    std::call_once(has_rests_, [&] { rests_.assign(static_cast<size_t>(D * stride_), T{0}); });
    rests_[static_cast<size_t>(d * stride_ + row)] = left;
  }

  template <typename From>
  void note_rests(const Parallel& parallel) {
    for (int d = 0; d < D; ++d) {
      rest[d] = rests_.data() + d * stride_;
      if (scale_.raw_period[d] > 0)
        rounding[d] = scale_.period[d] * static_cast<T>(std::numeric_limits<From>::epsilon());
    }
    note_leaves(parallel);
  }

  void note_leaves(const Parallel& parallel) {
    leaf_has_rests_.resize(static_cast<size_t>(leaves()));
    parallel.blocks(leaves(), 1 << 8, [&](int64_t begin, int64_t end) {
      for (int64_t leaf = begin; leaf < end; ++leaf)
        for (int d = 0; d < D; ++d)
          leaf_has_rests_[static_cast<size_t>(leaf)] |=
              std::any_of(rest[d] + leaf_row(leaf), rest[d] + leaf_row(leaf + 1), [](T one) { return one != 0; });
    });
  }

  TreeLayout layout_;
  const int32_t *splits_, *particle_splits_;
  const Scale<D, T>& scale_;
  const T* given_ = nullptr;  // (n, D)
  Scratch<T> nodes_, rows_;
  bool keep_rests_ = false;
  int64_t stride_ = 0;  // from one dimension to the next in `rows_` and `rests_`
  std::once_flag has_rests_;
  std::vector<T> rests_;                 // empty if no row has any
  std::vector<uint8_t> leaf_has_rests_;  // the same
  std::atomic<bool> wrapped_{false}, faded_{false};
};

}  // namespace jztree
