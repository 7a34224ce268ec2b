// For each particle of a small group, a thread sums over the group directly, in float64, and in a small periodic box
// over all images of each particle. Large groups and boxes have trees. Not tuned on a GPU yet.

#include <cstdint>

#include "ewald.h"
#include "group_trees.cuh"
#include "tree_walk.cuh"

namespace jztree {
namespace {

template <int D, typename T>
struct GroupSums {
  GroupTrees<D> trees;
  bool spline;
  T *potential, *acceleration;
};

// The sums for a particle. ewald: null without images.
template <int D>
struct ParticleSums {
  double place[D], potential, acceleration[D];

  // halfway: halfway_width of the positions.
  __device__ void add(const double* source, double weight, bool is_self, const Softening& softening,
                      const double* period, double halfway, const EwaldSum* ewald) {
    if (is_self && !ewald) return;
    double away[D], bare2 = 0;
    bool is_halfway[D];
    for (int d = 0; d < D; ++d) {
      away[d] = GroupRows<D>::nearest(source[d] - place[d], period[d]);
      bare2 += away[d] * away[d];
      is_halfway[d] = ewald && 2 * std::fabs(away[d]) >= period[d] * (1 - halfway);
    }
    if (ewald) ewald->add(away, weight, potential, acceleration);
    if (is_self) return;
    const Attraction<double> pair = softened(bare2 + softening.length2, softening.reach);
    potential += pair.potential * weight;
    for (int d = 0; d < D; ++d) {
      // NearestImages::share has the reason.
      const double force = is_halfway[d] ? softened(bare2, softening.reach).force : pair.force;
      acceleration[d] += away[d] * force * weight;
    }
  }
};

template <int D, typename T>
__global__ void sum_groups(const __grid_constant__ GroupSums<D, T> sums_of) {
  int64_t row = thread_index();
  const GroupRows<D>& in = sums_of.trees.in;
  if (row >= in.rows) return;
  int64_t g = sums_of.trees.tree_of(row) < 0 ? in.group_in_share(row) : -1;  // rows of trees are 0 until the walk
  ParticleSums<D> sums{};
  for (int d = 0; d < D && g >= 0; ++d) sums.place[d] = in.place[row * D + d];
  const Softening softening(sums_of.trees.softening[0], sums_of.spline);
  const bool has_images = sums_of.trees.sums_over_images();
  double period[D], sides[3] = {1, 1, 1};
  in.box.read(period);
  for (int d = 0; d < D && has_images; ++d) sides[d % 3] = period[d];
  const EwaldSum ewald(sides);
  for (int64_t source = g < 0 ? 0 : in.begin(g), end = g < 0 ? 0 : in.end(g); source < end; ++source)
    sums.add(in.place + source * D, in.weight[source], source == row, softening, period, halfway_width<T>,
             has_images ? &ewald : nullptr);
  // Devices add the bits of their results, so a row that another device sums must be 0 and not -0.
  sums_of.potential[row] = g < 0 ? T{0} : static_cast<T>(-sums.potential);
  for (int d = 0; d < D && sums_of.acceleration; ++d)
    sums_of.acceleration[row * D + d] = static_cast<T>(sums.acceleration[d]);
}

template <int D, typename T>
void group_potential(Queue& queue, const GroupPotential<D, T>& in) {
  const int64_t rows = in.grouped.rows();
  const GroupPlaces<D, T> places = group_places(queue, in.grouped, in.share);
  const GroupTrees<D> trees = group_trees(queue, places, in.softening, in.images);
  queue.launch_over(rows, sum_groups<D, T>, GroupSums<D, T>{trees, in.spline, in.potential, in.acceleration});
  if (rows <= summed_directly) return;
  const FieldResults results{in.potential.data, in.acceleration.data, sizeof(T) == sizeof(double)};
  if (in.acceleration.data) {
    walk_trees_of_groups<D, true>(queue, trees, in.error, in.spline, results);
  } else {
    walk_trees_of_groups<D, false>(queue, trees, in.error, in.spline, results);
  }
}

}  // namespace

JZTREE_KERNEL(group_potential, GroupPotential);

}  // namespace jztree
