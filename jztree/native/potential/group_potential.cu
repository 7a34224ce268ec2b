// One thread per particle sums over its group directly, in float64. Not tuned on a GPU yet.

#include <cstdint>

#include "group_places.cuh"

namespace jztree {
namespace {

template <int D, typename T>
struct GroupSums {
  GroupPlaces<D, T> places;
  Lengths softening;
  bool spline;
  T *potential, *acceleration;
};

template <int D, typename T>
__global__ void sum_groups(const __grid_constant__ GroupSums<D, T> in) {
  int64_t row = thread_index();
  if (row >= in.places.rows) return;
  int64_t g = in.places.group[row];
  double own[D], potential = 0, acceleration[D] = {};
  for (int d = 0; d < D && g >= 0; ++d) own[d] = in.places.place[row * D + d];
  const Softening softening(in.softening[0], in.spline);
  for (int64_t other = g < 0 ? 0 : in.places.begin(g), end = g < 0 ? 0 : in.places.end(g); other < end; ++other) {
    if (other == row) continue;
    double away[D], r2 = softening.length2;
    for (int d = 0; d < D; ++d) {
      away[d] = in.places.place[other * D + d] - own[d];
      r2 += away[d] * away[d];
    }
    const Attraction<double> pair = softened(r2, softening.reach);
    potential += pair.potential * in.places.weight[other];
    for (int d = 0; d < D; ++d) acceleration[d] += away[d] * pair.force * in.places.weight[other];
  }
  in.potential[row] = static_cast<T>(-potential);
  for (int d = 0; d < D && in.acceleration; ++d) in.acceleration[row * D + d] = static_cast<T>(acceleration[d]);
}

template <int D, typename T>
void group_potential(Queue& queue, const GroupPotential<D, T>& in) {
  GroupSums<D, T> sums{group_places(queue, in.grouped, in.share), in.softening, in.spline, in.potential,
                       in.acceleration};
  queue.launch_over(in.grouped.rows(), sum_groups<D, T>, sums);
}

}  // namespace

JZTREE_KERNEL(group_potential, GroupPotential);

}  // namespace jztree
