// Spherical overdensities (spheres.h says how): a thread takes one centre after the other, collects the
// particles of a shell by a walk from the top plane, sorts them, and takes them in that order. The cost is that of
// sorting what is in the spheres.

#include "spheres.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/cpu/handler.h"
#include "common/cpu/parallel.h"
#include "common/cpu/tree_buffers.h"

namespace jztree {
namespace {

// A hierarchy with nodes counted over all planes.
template <int D, typename T>
struct FlatTree {
  const TreeArrays<D, T>& arrays;
  int planes;
  const int64_t* starts;
  const T *pos, *lower, *upper;

  explicit FlatTree(const TreeArrays<D, T>& tree)
      : arrays(tree),
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
    for (double searched = -1; radius >= 0; searched = radius, radius = scan.close(radius, tree_.arrays.num)) {
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
void search_all(const Parallel& parallel, const FlatTree<D, T>& tree, const Masses<T>& mass, const T* centres,
                const T* nearest, int64_t q, const double* box, const Thresholds& thresholds, int64_t least,
                const SphereRows<T>& rows) {
  // A few centres at a time: some spheres hold 10^5 times what others do.
  parallel.blocks(q, 4, [&](int64_t begin, int64_t end) {
    SphereSearch<D, T> search(tree, mass);
    for (int64_t row = begin; row < end; ++row) {
      rows.clear(row, thresholds.count);
      if (!(nearest[row] >= 0)) continue;
      Centre<D, T> centre(centres + row * D, box);
      search.answer(centre, centre.first_radius(nearest[row]),
                    SphereScan<D, T>(thresholds, least, centre.half_box(), rows, row));
    }
  });
}

// nearest: distance of the `least`-th nearest particle; negative: this centre is not looked at, its row is zero.
ffi::Error overdensity(ffi::ThreadPool pool, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num,
                       ffi::Buffer<ffi::S32> splits, ffi::Buffer<ffi::S32> particle_splits, ffi::AnyBuffer lower,
                       ffi::AnyBuffer upper, ffi::AnyBuffer mass, ffi::AnyBuffer centre, ffi::AnyBuffer nearest,
                       ffi::AnyBuffer density, ffi::AnyBuffer box, ffi::Result<ffi::AnyBuffer> radius,
                       ffi::Result<ffi::AnyBuffer> inside, ffi::Result<ffi::Buffer<ffi::S32>> count,
                       ffi::Result<ffi::AnyBuffer> peak, ffi::Result<ffi::AnyBuffer> reach,
                       ffi::Span<const int64_t> plane_sizes, int64_t least) {
  return dispatch<overdensity_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    double period[D];
    auto fits = [&](const auto& buffer, int64_t elements) {
      return buffer.element_type() == pos.element_type() && static_cast<int64_t>(buffer.element_count()) == elements;
    };
    int64_t q = static_cast<int64_t>(nearest.element_count()), m = density.dimensions()[0];
    int64_t masses = static_cast<int64_t>(mass.element_count());
    auto tree = read_tree<D, T>(pos, num, splits, particle_splits, lower, upper, plane_sizes);
    std::vector<double> densities(static_cast<size_t>(m)), factors(static_cast<size_t>(m));
    std::vector<int32_t> columns(static_cast<size_t>(m));
    if (!tree || !read_exact(box, D, period) || !read_exact(density, m, densities.data()) || !fits(centre, q * D) ||
        !fits(nearest, q) || !fits(mass, masses) || (masses > 1 && masses != pos.dimensions()[0]) ||
        !fits(*radius, q * m) || !fits(*inside, q * m) || static_cast<int64_t>(count->element_count()) != q * m ||
        !fits(*peak, 2 * q) || !fits(*reach, q))
      return invalid("overdensity was called with arrays that do not fit together.");
    for (int64_t i = 0; i < m; ++i) place_threshold<D>(densities, m, i, factors.data(), columns.data());
    Thresholds thresholds{factors.data(), columns.data(), m};
    Masses<T> weights{masses ? mass.typed_data<T>() : nullptr, masses == 1};
    SphereRows<T> rows{radius->typed_data<T>(), inside->typed_data<T>(), count->typed_data(), peak->typed_data<T>(),
                       reach->typed_data<T>()};
    search_all<D, T>(Parallel(pool), FlatTree<D, T>(*tree), weights, centre.typed_data<T>(), nearest.typed_data<T>(), q,
                     period, thresholds, least, rows);
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_overdensity, overdensity, "plane_sizes", "least");

}  // namespace jztree
