// Small groups are computed one by one, each by one thread; large groups, and boxes with all images, one after the
// other by all threads.

#include "group_potential.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>

#include "common/cpu/context.h"
#include "group_walk.h"

namespace jztree {
namespace {

constexpr int64_t images_summed_directly = 64;
constexpr int64_t shared_by_threads = 1 << 16;
constexpr int64_t groups_of_a_task = 4, runs_of_a_task = 4;

template <int D, typename T>
class GroupSums {
 public:
  GroupSums(const Parallel& parallel, const GroupPotential<D, T>& in)
      : parallel_(parallel),
        in_(in),
        particles_(in.grouped.particles()),
        softening_(in.softening[0]),
        error_(in.error[0]) {
    in.grouped.box.read(particles_.period);
    has_images_ = in.images && D == 3 && *std::min_element(particles_.period, particles_.period + D) > 0;
  }

  void run() {
    std::fill_n(in_.potential.data, in_.grouped.rows(), T{0});
    if (in_.acceleration.data) std::fill_n(in_.acceleration.data, in_.grouped.rows() * D, T{0});
    const int64_t groups = in_.grouped.groups()();
    parallel_.blocks(groups, groups_of_a_task, [&](int64_t from, int64_t to) {
      GroupTree<D> tree;
      for (int64_t g = from; g < to; ++g)
        if (!is_shared(g)) sum_group(g, tree, nullptr);
    });
    for (int64_t g = 0; g < groups; ++g) {
      if (!is_shared(g)) continue;
      GroupTree<D> tree;
      sum_group(g, tree, &parallel_);
    }
  }

 private:
  int64_t inside(int64_t row) const { return std::clamp<int64_t>(row, 0, in_.grouped.rows()); }
  int64_t begin(int64_t g) const { return inside(in_.grouped.offset[g]); }
  int64_t end(int64_t g) const { return inside(static_cast<int64_t>(in_.grouped.offset[g]) + in_.grouped.count[g]); }
  int64_t size(int64_t g) const { return end(g) - begin(g); }
  bool is_shared(int64_t g) const { return has_images_ || size(g) > shared_by_threads; }

  void sum_group(int64_t g, GroupTree<D>& tree, const Parallel* parallel) {
    if (size(g) <= 0) return;
    const bool wants_tree = size(g) > (has_images_ ? images_summed_directly : summed_directly);
    const double extent = has_images_ ? *std::max_element(particles_.period, particles_.period + D) : 0;
    tree.build(particles_, begin(g), end(g), softening_, wants_tree, extent, parallel);
    const ImageField images = has_images_      ? image_field(tree, *parallel)
                              : tree.is_wide() ? ImageField::nearest(tree.wide_period, D)
                                               : ImageField();
    const int64_t first = in_.share.begin(tree.runs()), last = in_.share.end(tree.runs());
    loop(parallel, last - first, runs_of_a_task, [&](int64_t from, int64_t to) {
      if (error_ >= least_narrow(has_images_, in_.acceleration.data != nullptr)) {
        sum_runs<float>(g, tree, images, first + from, first + to);
      } else {
        sum_runs<double>(g, tree, images, first + from, first + to);
      }
    });
  }

  ImageField image_field(const GroupTree<D>& tree, const Parallel& parallel) const {
    ImageField images;
    if constexpr (D == 3) {
      double period[D];
      for (int d = 0; d < D; ++d) period[d] = particles_.period[d] * tree.length_factor;
      images = ImageField(period, error_, parallel);
      images.take(tree.place.data(), tree.weight.data(), tree.rows(), parallel);
    }
    return images;
  }

  template <typename Real>
  void sum_runs(int64_t g, const GroupTree<D>& tree, const ImageField& images, int64_t from, int64_t to) {
    const Softening softening(tree.softening, in_.spline);
    auto sums = std::make_unique<RunSums<D, Real>>(tree, images, softening, halfway_width<T>, error_);
    for (int64_t i = from; i < to; ++i) {
      const Run run = tree.run(i);
      if (in_.acceleration.data) {
        if (!tree.planes.empty()) sums->template sum<true>(run, {first_error, unlimited});
        sums->template sum<true>(run, {error_, error_ * sums->least_acceleration()});
      } else {
        sums->template sum<false>(run, {error_, unlimited});
      }
      write(g, tree, run, *sums);
    }
  }

  template <typename Real>
  void write(int64_t g, const GroupTree<D>& tree, const Run& run, const RunSums<D, Real>& sums) {
    const double unit = tree.length_factor / tree.mass_factor;
    for (int64_t i = 0; i < run.end - run.begin; ++i) {
      const int64_t row = begin(g) + tree.order[static_cast<size_t>(run.begin + i)];
      in_.potential[row] = static_cast<T>(-sums.potential[i] * unit);
      for (int d = 0; d < D && in_.acceleration.data; ++d)
        in_.acceleration[row * D + d] = static_cast<T>(sums.acceleration[d][i] * tree.length_factor * unit);
    }
  }

  static constexpr double unlimited = std::numeric_limits<double>::infinity();
  const Parallel& parallel_;
  const GroupPotential<D, T>& in_;
  GroupParticles<D, T> particles_;
  double softening_, error_;
  bool has_images_;
};

template <int D, typename T>
void group_potential(const Parallel& parallel, const GroupPotential<D, T>& in) {
  GroupSums<D, T>(parallel, in).run();
}

}  // namespace

JZTREE_KERNEL(group_potential, GroupPotential);

}  // namespace jztree
