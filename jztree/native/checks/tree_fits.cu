#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/loads.cuh"
#include "common/cuda/tree.cuh"
#include "common/morton.h"
#include "tree_fits.h"

namespace jztree {
namespace {

// Whether the splits of every plane ascend from 0 to the length of the plane below, and to the number of particles.
template <int D, typename T>
__global__ void check_splits(DeviceTree<D, T> tree, int32_t* fits) {
  int64_t node = thread_index();
  int plane = 0;
  while (plane < tree.planes && node >= tree.starts[plane + 1]) ++plane;
  if (plane == tree.planes) return;
  const int32_t *child = tree.splits + node + plane, *row = tree.particle_splits + node + plane;
  int64_t num = tree.num(), below = plane == 0 ? num : tree.starts[plane] - tree.starts[plane - 1];
  bool covers = child[0] <= child[1] && row[0] <= row[1];
  if (node == tree.starts[plane]) covers &= child[0] == 0 && row[0] == 0;
  if (node + 1 == tree.starts[plane + 1]) covers &= child[1] == below && row[1] == num;
  if (!covers) store_relaxed(fits, 0);
}

__global__ void check_rows(const int32_t* rows, int64_t count, int32_t* fits) {
  int64_t i = thread_index();
  if (i < count && (rows[i] < 0 || rows[i] >= count)) store_relaxed(fits, 0);
}

template <int D, typename T>
__global__ void check_positions(DeviceTree<D, T> tree, Lengths period, int32_t* fits) {
  int64_t leaf = thread_index(), num = tree.num();
  // If splits do not ascend, every leaf may seem to hold all rows, and the test would take too long. So a thread stops
  // when the hierarchy is known to be wrong, also from the test of another leaf.
  if (leaf >= tree.leaves() || load_outdated(fits) == 0) return;
  double length[D];
  for (int d = 0; d < D; ++d) length[d] = period[d];
  bool inside = true;
  int64_t begin = tree.leaf_row(leaf), end = tree.leaf_row(leaf + 1);
  if (begin < 0 || end > num) return;  // check_splits reports it
  for (int64_t row = begin; row < end; ++row)
    for (int d = 0; d < D; ++d) {
      T x = wrap(tree.pos[row * D + d], length[d]);
      inside &= x >= tree.lower[leaf * D + d] && x <= tree.upper[leaf * D + d];
    }
  if (!inside) store_relaxed(fits, 0);
}

template <int D, typename T>
void tree_fits(Queue& queue, const TreeFits<D, T>& in) {
  DeviceTree<D, T> tree = on_device(in.tree);
  // Setting every byte to 1 gives a non-zero number.
  queue.fill_bytes(in.fits, 1, 1);
  queue.launch_over(tree.starts[tree.planes], check_splits<D, T>, tree, in.fits);
  queue.launch_over(tree.leaves(), check_positions<D, T>, tree, in.box, in.fits);
  if (in.rows.data) queue.launch_over(in.rows.rows(), check_rows, in.rows.data, in.rows.rows(), in.fits);
}

}  // namespace

JZTREE_KERNEL(tree_fits, TreeFits);

}  // namespace jztree
