// A thread takes one centre after the other, collects the particles of a shell by a walk from the top plane, sorts
// them, and processes them in that order. The main cost is that of sorting the particles in the spheres.

#include "overdensity.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/cpu/context.h"
#include "sphere_walk.h"

namespace jztree {
namespace {

struct NearParticle {
  double distance2, mass;

  // At equal distance, order by mass, so that sums do not depend on the order of rows.
  bool operator<(const NearParticle& other) const {
    return distance2 != other.distance2 ? distance2 < other.distance2 : mass < other.mass;
  }
};

// The search of one thread, used for one centre after another.
template <int D, typename T>
class SphereSearch {
 public:
  SphereSearch(const SphereWalk<D, T>& walk, const Masses<T>& mass) : walk_(walk), mass_(mass) {}

  void answer(const Centre<D, T>& centre, double radius, SphereScan<D, T> scan) {
    for (double searched = -1; radius >= 0; searched = radius, radius = scan.close(radius, walk_.num())) {
      near_.clear();
      walk_.rows(centre, searched, radius,
                 [&](int64_t row, double distance2) { near_.push_back({distance2, mass_[row]}); });
      std::sort(near_.begin(), near_.end());
      for (const NearParticle& particle : near_)
        if (!scan.take(particle.distance2, particle.mass)) return;
    }
  }

 private:
  const SphereWalk<D, T>& walk_;
  const Masses<T>& mass_;
  std::vector<NearParticle> near_;
};

template <int D, typename T>
void overdensity(const Parallel& parallel, const Overdensity<D, T>& in) {
  double box[D];
  in.box.read(box);
  std::vector<double> factors(static_cast<size_t>(in.m()));
  std::vector<int32_t> columns(static_cast<size_t>(in.m()));
  for (int64_t i = 0; i < in.m(); ++i) place_threshold<D>(in.density, in.m(), i, factors.data(), columns.data());
  Thresholds thresholds{factors.data(), columns.data(), in.m()};
  SphereWalk<D, T> walk(in.tree);
  Masses<T> mass = in.masses();
  // A few centres at a time: some spheres hold 10^5 times as many particles as others.
  parallel.blocks(in.q(), 4, [&](int64_t begin, int64_t end) {
    SphereSearch<D, T> search(walk, mass);
    for (int64_t row = begin; row < end; ++row) {
      in.rows.clear(row, in.m());
      if (!(in.nearest[row] >= 0)) continue;
      Centre<D, T> centre(in.centre + row * D, box);
      search.answer(centre, centre.first_radius(in.nearest[row]),
                    SphereScan<D, T>(thresholds, in.min_count, centre.half_box(), in.rows, row));
    }
  });
}

}  // namespace

JZTREE_KERNEL(overdensity, Overdensity);

}  // namespace jztree
