#include "tree_fits.h"

#include <atomic>
#include <cstdint>

#include "common/cpu/context.h"
#include "common/morton.h"

namespace jztree {
namespace {

// Whether the splits of every plane ascend from 0 to the length of the plane below, and to the number of particles.
template <int D, typename T>
bool splits_cover(const Tree<D, T>& tree) {
  bool good = true;
  for (int plane = 0; plane < tree.layout.planes(); ++plane) {
    int64_t size = tree.layout.sizes[static_cast<size_t>(plane)];
    int64_t below = plane == 0 ? tree.num() : tree.layout.sizes[static_cast<size_t>(plane) - 1];
    const int32_t* child = tree.splits + tree.layout.split_start(plane);
    const int32_t* row = tree.particle_splits + tree.layout.split_start(plane);
    good &= child[0] == 0 && child[size] == below && row[0] == 0 && row[size] == tree.num();
    for (int64_t i = 0; i < size; ++i) good &= child[i] <= child[i + 1] && row[i] <= row[i + 1];
  }
  return good;
}

template <int D, typename T>
bool rows_inside(const Parallel& parallel, const Tree<D, T>& tree, const double* period) {
  std::atomic<bool> inside{true};
  parallel.blocks(tree.layout.sizes[0], 1 << 10, [&](int64_t begin, int64_t end) {
    bool good = true;
    for (int64_t leaf = begin; leaf < end; ++leaf)
      for (int64_t row = tree.particle_splits[leaf]; row < tree.particle_splits[leaf + 1]; ++row)
        for (int d = 0; d < D; ++d) {
          T x = wrap(tree.pos[row * D + d], period[d]);
          good &= x >= tree.lower[leaf * D + d] && x <= tree.upper[leaf * D + d];
        }
    if (!good) inside.store(false, std::memory_order_relaxed);
  });
  return inside.load();
}

template <int D, typename T>
void tree_fits(const Parallel& parallel, const TreeFits<D, T>& in) {
  double period[D];
  in.box.read(period);
  *in.fits = splits_cover(in.tree) && rows_inside(parallel, in.tree, period);
}

}  // namespace

JZTREE_KERNEL(tree_fits, TreeFits);

}  // namespace jztree
