// Lanes are particles of a group; all threads share each group.

#include "group_tides.h"

#include <algorithm>
#include <cstdint>

#include "common/cpu/context.h"
#include "gravity_lanes.h"
#include "group_tree.h"

namespace jztree {
namespace {

template <int D, typename T>
class TideSums {
 public:
  TideSums(const GroupTides<D, T>& in, int64_t begin, const GroupTree<D>& group)
      : in_(in), moves_(in.grouped.vel + begin * D), group_(group), softening_(group.softening, in.spline) {}

  void run(int64_t from, int64_t to, T* change) const {
    for (int64_t i = from; i < to; i += lanes) sum(i, std::min(lanes, to - i), change);
  }

 private:
  using V = Lanes<double>;

  void sum(int64_t first, int64_t count, T* change) const {
    double rows[2 * D + 1][lanes];
    for (int64_t i = 0; i < lanes; ++i) {
      const int64_t row = first + std::min(i, count - 1);
      for (int d = 0; d < D; ++d) {
        rows[d][i] = group_.place[static_cast<size_t>(row * D + d)];
        rows[D + d][i] = static_cast<double>(moves_[row * D + d]);
      }
      rows[2 * D][i] = in_.transposed ? group_.weight[static_cast<size_t>(row)] : 1;
    }
    V own[D], own_move[D], factor, sums[D] = {};
    for (int d = 0; d < D; ++d) {
      load(rows[d], own[d]);
      load(rows[D + d], own_move[d]);
    }
    load(rows[2 * D], factor);
    for (int64_t row = 0; row < group_.rows(); ++row) {
      const double weight = group_.weight[static_cast<size_t>(row)];
      V away[D], move[D], r2(softening_.length2), along{};
      for (int d = 0; d < D; ++d) {
        const double other_move = static_cast<double>(moves_[row * D + d]) * (in_.transposed ? 1 : weight);
        away[d] = nearest(V(group_.place[static_cast<size_t>(row * D + d)]) - own[d], group_.wide_period[d]);
        move[d] = V(other_move) * factor - own_move[d] * weight;
        r2 = r2 + away[d] * away[d];
        along = along + away[d] * move[d];
      }
      const Attraction<V> pair = softened(r2, softening_.reach);
      for (int d = 0; d < D; ++d) sums[d] = sums[d] + move[d] * pair.force - away[d] * (along * pair.bend);
    }
    const double length = group_.length_factor, mass = group_.mass_factor;
    for (int d = 0; d < D; ++d) {
      double all[lanes];
      store(sums[d], all);
      for (int64_t i = 0; i < count; ++i)
        change[(first + i) * D + d] = static_cast<T>(all[i] * length * (length / mass) * length);
    }
  }

  static V nearest(const V& difference, double period) {
    if (!(period > 0)) return difference;
    const V lower = choose(V(period / 2) < difference, difference - V(period), difference);
    return choose(difference < V(-period / 2), difference + V(period), lower);
  }

  const GroupTides<D, T>& in_;
  const T* moves_;
  const GroupTree<D>& group_;
  const Softening softening_;
};

template <int D, typename T>
void group_tides(const Parallel& parallel, const GroupTides<D, T>& in) {
  const GroupedParticles<D, T>& grouped = in.grouped;
  GroupParticles<D, T> particles = grouped.particles();
  grouped.box.read(particles.period);
  std::fill_n(in.change.data, grouped.rows() * D, T{0});
  const auto inside = [&](int64_t row) { return std::clamp<int64_t>(row, 0, grouped.rows()); };
  GroupTree<D> group;
  for (int64_t g = 0; g < grouped.groups()(); ++g) {
    const int64_t begin = inside(grouped.offset[g]);
    const int64_t size = inside(static_cast<int64_t>(grouped.offset[g]) + grouped.count[g]) - begin;
    if (size <= 0) continue;
    group.build(particles, begin, begin + size, in.softening[0], false, 0, &parallel);
    const TideSums<D, T> sums(in, begin, group);
    const int64_t first = in.share.begin(size), last = in.share.end(size);
    loop(&parallel, last - first, lanes,
         [&](int64_t from, int64_t to) { sums.run(first + from, first + to, in.change.data + begin * D); });
  }
}

}  // namespace

JZTREE_KERNEL(group_tides, GroupTides);

}  // namespace jztree
