// A thread takes one sphere after the other, lists its particles by one walk, and sums them in z-order in three passes.
// So the bits depend only on the particles in the sphere.

#include "sphere_sums.h"

#include <cstdint>
#include <vector>

#include "common/cpu/context.h"
#include "sphere_walk.h"

namespace jztree {
namespace {

// rows: of the particles in the sphere.
template <int D, typename T>
Moments<D> sums_about(const T* centre, const GroupParticles<D, T>& particles, const std::vector<int64_t>& rows) {
  Moments<D> sums{};
  for (int d = 0; d < D; ++d) sums.first[d] = static_cast<double>(centre[d]);
  for (SumPass pass : {SumPass::masses, SumPass::centres, SumPass::spreads}) {
    RowSums<D, T> of_pass(particles, pass, sums);
    Moments<D> part{};
    for (int64_t row : rows) of_pass.add(row, part);
    sums.join(pass, part);
  }
  return sums;
}

template <int D, typename T>
void sphere_sums(const Parallel& parallel, const SphereSums<D, T>& in) {
  GroupParticles<D, T> particles = in.particles();
  double box[D];
  in.box.read(box);
  in.box.read(particles.period);
  SphereWalk<D, T> walk(in.tree);
  // A few spheres at a time: some hold 10^5 times as many particles as others.
  parallel.blocks(in.q(), 4, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> rows;
    for (int64_t row = begin; row < end; ++row) {
      rows.clear();
      auto radius = static_cast<double>(in.radius[row]);
      if (radius > 0)
        walk.rows(Centre<D, T>(in.centre + row * D, box), -1, radius,
                  [&](int64_t particle, double) { rows.push_back(particle); });
      clear_sphere(row, in.moving(), in.count, in.columns);
      if (rows.empty()) continue;
      in.count[row] = static_cast<int32_t>(rows.size());
      in.columns.write(row, sums_about(in.centre + row * D, particles, rows), particles.period, in.moving());
    }
  });
}

}  // namespace

JZTREE_KERNEL(sphere_sums, SphereSums);

}  // namespace jztree
