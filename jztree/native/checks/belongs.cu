// Whether a hierarchy belongs to particles: it covers exactly these, and every one lies in the box of its leaf, without
// which no search is right. A user may pass any hierarchy with any particles, so nothing here trusts a number in it.

#include <cstdint>

#include "common/morton.h"
#include "common/cuda/arguments.cuh"
#include "common/cuda/queue.cuh"
#include "common/cuda/tree.cuh"

namespace jztree {
namespace {

// Whether the splits of every plane rise from 0 to the length of the plane below, and to the number of particles.
template <int D, typename T>
__global__ void check_splits(DeviceTree<D, T> tree, int32_t* belongs) {
  int64_t node = thread_index();
  int plane = 0;
  while (plane < tree.planes && node >= tree.starts[plane + 1]) ++plane;
  if (plane == tree.planes) return;
  const int32_t *child = tree.splits + node + plane, *row = tree.particle_splits + node + plane;
  int64_t num = tree.num(), below = plane == 0 ? num : tree.starts[plane] - tree.starts[plane - 1];
  bool good = child[0] <= child[1] && row[0] <= row[1];
  if (node == tree.starts[plane]) good &= child[0] == 0 && row[0] == 0;
  if (node + 1 == tree.starts[plane + 1]) good &= child[1] == below && row[1] == num;
  if (!good) *belongs = 0;
}

template <int D, typename T>
__global__ void check_rows(DeviceTree<D, T> tree, Lengths period, int32_t* belongs) {
  int64_t leaf = thread_index(), num = tree.num();
  // Splits that do not rise may give every leaf all rows, which would take for ever. Leaves that see what another one
  // has just found may end too.
  if (leaf >= tree.leaves() || *belongs == 0) return;
  double length[D];
  for (int d = 0; d < D; ++d) length[d] = period[d];
  bool good = true;
  int64_t begin = tree.leaf_row(leaf), end = tree.leaf_row(leaf + 1);
  if (begin < 0 || end > num) return;  // check_splits has seen it
  for (int64_t row = begin; row < end; ++row)
    for (int d = 0; d < D; ++d) {
      T x = wrap(tree.pos[row * D + d], length[d]);
      good &= x >= tree.lower[leaf * D + d] && x <= tree.upper[leaf * D + d];
    }
  if (!good) *belongs = 0;
}

ffi::Error belongs(cudaStream_t stream, DeviceMemory scratch, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num,
                   ffi::Buffer<ffi::S32> splits, ffi::Buffer<ffi::S32> particle_splits, ffi::AnyBuffer lower,
                   ffi::AnyBuffer upper, ffi::AnyBuffer box, ffi::Result<ffi::Buffer<ffi::S32>> belongs,
                   ffi::Span<const int64_t> plane_sizes) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    Lengths period;
    if (!read_lengths(box, D, &period)) return invalid("belongs was called with arrays that do not fit together.");
    Queue queue(stream, scratch);
    auto tree = read_tree<D, T>(pos, num, splits, particle_splits, lower, upper, plane_sizes);
    // Every byte 1 is a number that is not 0.
    queue.fill_bytes(belongs->typed_data(), tree ? 1 : 0, 1);
    if (!tree) return ffi::Error::Success();
    queue.launch_over(tree->starts[tree->planes], check_splits<D, T>, *tree, belongs->typed_data());
    queue.launch_over(tree->leaves(), check_rows<D, T>, *tree, period, belongs->typed_data());
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_belongs, belongs, "plane_sizes");

}  // namespace jztree
