#include "tree_fits.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "common/cpu/context.h"
#include "common/morton.h"

namespace jztree {
namespace {

// Whether the splits of every plane ascend from 0 to the length of the plane below, and to the number of particles.
template <int D, typename T>
bool splits_cover(const Tree<D, T>& tree) {
  bool covers = true;
  for (int plane = 0; plane < tree.layout.planes(); ++plane) {
    int64_t size = tree.layout.sizes[static_cast<size_t>(plane)];
    int64_t below = plane == 0 ? tree.num() : tree.layout.sizes[static_cast<size_t>(plane) - 1];
    const int32_t* child = tree.splits + tree.layout.split_start(plane);
    const int32_t* row = tree.particle_splits + tree.layout.split_start(plane);
    covers &= child[0] == 0 && child[size] == below && row[0] == 0 && row[size] == tree.num();
    for (int64_t i = 0; i < size; ++i) covers &= child[i] <= child[i + 1] && row[i] <= row[i + 1];
  }
  return covers;
}

// Whether is_good(begin, end) holds for all blocks of `count` elements.
template <typename IsGood>
bool all_blocks(const Parallel& parallel, int64_t count, int64_t size, const IsGood& is_good) {
  std::atomic<bool> good{true};
  parallel.blocks(count, size, [&](int64_t begin, int64_t end) {
    if (!is_good(begin, end)) good.store(false, std::memory_order_relaxed);
  });
  return good.load();
}

// Whether all positions of a leaf, changed by `move`, are in its box.
template <int D, typename T, typename Move>
bool leaf_holds(const Tree<D, T>& tree, int64_t leaf, const Move& move) {
  const T *lower = tree.lower + leaf * D, *upper = tree.upper + leaf * D;
  bool inside = true;
  for (int64_t row = tree.particle_splits[leaf]; row < tree.particle_splits[leaf + 1]; ++row)
    for (int d = 0; d < D; ++d) {
      T x = move(tree.pos[row * D + d], d);
      inside &= x >= lower[d] && x <= upper[d];
    }
  return inside;
}

// Whether the box of a leaf is so far inside the periodic box that wrapping changes no position in it.
template <int D, typename T>
bool lies_inside(const Tree<D, T>& tree, int64_t leaf, const double* period) {
  bool inside = true;
  for (int64_t d = 0; d < D; ++d)
    inside &= !(period[d] > 0) || (tree.lower[leaf * D + d] >= 0 && tree.upper[leaf * D + d] < period[d]);
  return inside;
}

template <int D, typename T>
bool positions_inside(const Parallel& parallel, const Tree<D, T>& tree, const double* period) {
  return all_blocks(parallel, tree.layout.sizes[0], 1 << 10, [&](int64_t begin, int64_t end) {
    bool fits = true;
    // Most leaves need no wrapping, which would take most of the time.
    for (int64_t leaf = begin; leaf < end; ++leaf)
      fits &= (lies_inside(tree, leaf, period) && leaf_holds(tree, leaf, [](T x, int) { return x; })) ||
              leaf_holds(tree, leaf, [&](T x, int d) { return wrap(x, period[d]); });
    return fits;
  });
}

bool rows_inside(const Parallel& parallel, const Array<const int32_t>& rows, int64_t count) {
  return !rows.data || all_blocks(parallel, count, 1 << 16, [&](int64_t begin, int64_t end) {
    return std::all_of(rows.data + begin, rows.data + end, [&](int32_t row) { return row >= 0 && row < count; });
  });
}

template <int D, typename T>
void tree_fits(const Parallel& parallel, const TreeFits<D, T>& in) {
  double period[D];
  in.box.read(period);
  *in.fits = splits_cover(in.tree) && rows_inside(parallel, in.rows, in.tree.pos.rows()) &&
             positions_inside(parallel, in.tree, period);
}

}  // namespace

JZTREE_KERNEL(tree_fits, TreeFits);

}  // namespace jztree
