// Whether a hierarchy belongs to particles: it covers exactly these, and every one lies in the box of its leaf, without
// which no search is right. A user may pass any hierarchy with any particles.

#include <atomic>
#include <cstdint>

#include "common/morton.h"
#include "common/cpu/handler.h"
#include "common/cpu/parallel.h"
#include "common/cpu/tree_buffers.h"

namespace jztree {
namespace {

// Whether the splits of every plane rise from 0 to the length of the plane below, and to the number of particles.
template <int D, typename T>
bool splits_cover(const TreeArrays<D, T>& tree) {
  bool good = true;
  for (int plane = 0; plane < tree.layout.planes(); ++plane) {
    int64_t size = tree.layout.sizes[static_cast<size_t>(plane)];
    int64_t below = plane == 0 ? tree.num : tree.layout.sizes[static_cast<size_t>(plane) - 1];
    const int32_t* child = tree.splits + tree.layout.split_start(plane);
    const int32_t* row = tree.particle_splits + tree.layout.split_start(plane);
    good &= child[0] == 0 && child[size] == below && row[0] == 0 && row[size] == tree.num;
    for (int64_t i = 0; i < size; ++i) good &= child[i] <= child[i + 1] && row[i] <= row[i + 1];
  }
  return good;
}

template <int D, typename T>
bool rows_inside(const Parallel& parallel, const TreeArrays<D, T>& tree, const double* period) {
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

ffi::Error belongs(ffi::ThreadPool pool, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num, ffi::Buffer<ffi::S32> splits,
                   ffi::Buffer<ffi::S32> particle_splits, ffi::AnyBuffer lower, ffi::AnyBuffer upper,
                   ffi::AnyBuffer box, ffi::Result<ffi::Buffer<ffi::S32>> belongs,
                   ffi::Span<const int64_t> plane_sizes) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    double period[D];
    if (!read_exact(box, D, period)) return invalid("belongs was called with arrays that do not fit together.");
    auto tree = read_tree<D, T>(pos, num, splits, particle_splits, lower, upper, plane_sizes);
    belongs->typed_data()[0] = tree && splits_cover(*tree) && rows_inside(Parallel(pool), *tree, period);
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_belongs, belongs, "plane_sizes");

}  // namespace jztree
