// A thread takes one centre after the other, collects the particles of a shell by a walk from the top plane, sorts
// them, and takes them in that order. The cost is that of sorting what is in the spheres.

#include "overdensity.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/cpu/context.h"

namespace jztree {
namespace {

// A hierarchy with nodes counted over all planes.
template <int D, typename T>
struct FlatTree {
  const Tree<D, T>& arrays;
  int64_t num;
  int planes;
  const int64_t* starts;
  const T *pos, *lower, *upper;

  explicit FlatTree(const Tree<D, T>& tree)
      : arrays(tree),
        num(tree.num()),
        planes(tree.layout.planes()),
        starts(tree.layout.starts.data()),
        pos(tree.pos),
        lower(tree.lower),
        upper(tree.upper) {}

  int64_t first_row(int plane, int64_t node) const { return arrays.particle_splits[node + plane]; }
  int64_t first_child(int plane, int64_t node) const { return starts[plane - 1] + arrays.splits[node + plane]; }
};

struct NearParticle {
  double distance2, mass;

  // So that sums do not depend on the order of what is at the same distance.
  bool operator<(const NearParticle& other) const {
    return distance2 != other.distance2 ? distance2 < other.distance2 : mass < other.mass;
  }
};

// One thread's search, used for one centre after another.
template <int D, typename T>
class SphereSearch {
 public:
  SphereSearch(const FlatTree<D, T>& tree, const Masses<T>& mass) : tree_(tree), mass_(mass) {}

  void answer(const Centre<D, T>& centre, double radius, SphereScan<D, T> scan) {
    int top = tree_.planes - 1;
    for (double searched = -1; radius >= 0; searched = radius, radius = scan.close(radius, tree_.num)) {
      near_.clear();
      collect(centre, searched, radius, top, tree_.starts[top], tree_.starts[top + 1]);
      std::sort(near_.begin(), near_.end());
      for (const NearParticle& particle : near_)
        if (!scan.take(particle.distance2, particle.mass)) return;
    }
  }

 private:
  // Adds what nodes [begin, end) of a plane have beyond the inner radius, if it is not negative, and within the outer.
  void collect(const Centre<D, T>& centre, double inner, double outer, int plane, int64_t begin, int64_t end) {
    double most = centre.gap2_within(outer), inner2 = inner >= 0 ? inner * inner : -1;
    for (int64_t node = begin; node < end; ++node) {
      const T *lower = tree_.lower + node * D, *upper = tree_.upper + node * D;
      int64_t first = tree_.first_row(plane, node), last = tree_.first_row(plane, node + 1);
      if (first == last || centre.gap2(lower, upper) > most || centre.reach(lower, upper) < inner) continue;
      if (plane > 0) {
        collect(centre, inner, outer, plane - 1, tree_.first_child(plane, node), tree_.first_child(plane, node + 1));
        continue;
      }
      for (int64_t row = first; row < last; ++row) {
        double distance2 = centre.distance2(tree_.pos + row * D);
        if (distance2 > inner2 && distance2 <= outer * outer) near_.push_back({distance2, mass_[row]});
      }
    }
  }

  const FlatTree<D, T>& tree_;
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
  FlatTree<D, T> tree(in.tree);
  Masses<T> mass = in.masses();
  // A few centres at a time: some spheres hold 10^5 times what others do.
  parallel.blocks(in.q(), 4, [&](int64_t begin, int64_t end) {
    SphereSearch<D, T> search(tree, mass);
    for (int64_t row = begin; row < end; ++row) {
      in.rows.clear(row, in.m());
      if (!(in.nearest[row] >= 0)) continue;
      Centre<D, T> centre(in.centre + row * D, box);
      search.answer(centre, centre.first_radius(in.nearest[row]),
                    SphereScan<D, T>(thresholds, in.least, centre.half_box(), in.rows, row));
    }
  });
}

}  // namespace

JZTREE_KERNEL(overdensity, Overdensity);

}  // namespace jztree
