// A warp takes a sphere and walks the tree three times, once for each pass of the sums. The tree determines which lane
// adds which particle, and lanes are added in a fixed order, so sums have the same bits in every run. Their rounding
// order differs from that on the CPU.
//
// Each of the three walks processes the particles in the sphere and in the leaves on its edge. The time is at least
// that of the largest sphere, because only one warp processes it.

#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/tree.cuh"
#include "groups/moments.cuh"
#include "sphere_sums.h"
#include "sphere_walk.cuh"

namespace jztree {
namespace {

template <int D, typename T>
struct Spheres {
  DeviceTree<D, T> tree;
  GroupParticles<D, T> particles;
  const T *centres, *radii;
  Lengths box;
  int32_t* count;
  CatalogueColumns<D, T> columns;
};

template <int D, typename T>
__device__ Moments<D> sums_about(const Spheres<D, T>& in, const T* place, double radius,
                                 ShellWalk<D, T, warp_size>& walk, const GroupParticles<D, T>& particles) {
  Centre<D, T> centre(place, particles.period);
  Moments<D> sums{};
  for (int d = 0; d < D; ++d) sums.first[d] = static_cast<double>(place[d]);
  for (SumPass pass : {SumPass::masses, SumPass::centres, SumPass::spreads}) {
    RowSums<D, T> of_pass(particles, pass, sums);
    Moments<D> part{};
    __syncthreads();  // the previous walk has ended
    walk.rows(centre, -1, radius, [&](int64_t row) {
      if (row >= 0 && centre.distance2(in.tree.pos + row * D) <= radius * radius) of_pass.add(row, part);
    });
    reduce_warp(pass, part);
    sums.join(pass, part);
  }
  return sums;
}

template <int D, typename T>
__global__ void __launch_bounds__(warp_size) sum_spheres(const __grid_constant__ Spheres<D, T> in) {
  __shared__ WalkMemory<warp_size> memory;
  int64_t row = blockIdx.x;
  auto radius = static_cast<double>(in.radii[row]);
  bool moving = in.particles.vel != nullptr;
  if (threadIdx.x == 0) clear_sphere(row, moving, in.count, in.columns);
  if (!(radius > 0)) return;  // the same in all lanes
  ShellWalk<D, T, warp_size> walk(in.tree, memory, reinterpret_cast<Span*>(dynamic_shared()));
  GroupParticles<D, T> particles = in_box(in.particles, in.box);
  Moments<D> sums = sums_about(in, in.centres + row * D, radius, walk, particles);
  if (threadIdx.x > 0 || sums.count == 0) return;
  in.count[row] = static_cast<int32_t>(sums.count);
  in.columns.write(row, sums, particles.period, moving);
}

template <int D, typename T>
void sphere_sums(Queue& queue, const SphereSums<D, T>& in) {
  Spheres<D, T> spheres{on_device(in.tree), in.particles(), in.centre, in.radius, in.box, in.count, in.columns};
  size_t stack = static_cast<size_t>(span_stack(warp_size, spheres.tree.planes)) * sizeof(Span);
  queue.launch(in.q(), warp_size, stack, sum_spheres<D, T>, spheres);
}

}  // namespace

JZTREE_KERNEL(sphere_sums, SphereSums);

}  // namespace jztree
