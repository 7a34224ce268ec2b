// One thread per particle sums over its group directly, in float64, and in a periodic box over all images of each
// particle. Not tuned on a GPU yet.

#include <cstdint>

#include "ewald.h"
#include "group_places.cuh"

namespace jztree {
namespace {

template <int D, typename T>
struct GroupSums {
  GroupPlaces<D, T> places;
  Lengths softening;
  bool spline, images;
  T *potential, *acceleration;
};

// The sums for a particle. ewald: null without images.
template <int D>
struct ParticleSums {
  double place[D], potential, acceleration[D];

  __device__ void add(const double* source, double weight, bool is_self, const Softening& softening,
                      const EwaldSum* ewald) {
    if (is_self && !ewald) return;
    double away[D], r2 = softening.length2;
    for (int d = 0; d < D; ++d) {
      away[d] = source[d] - place[d];
      if (ewald) away[d] -= ewald->period[d % 3] * std::nearbyint(away[d] / ewald->period[d % 3]);
      r2 += away[d] * away[d];
    }
    if (ewald) ewald->add(away, weight, potential, acceleration);
    if (is_self) return;
    const Attraction<double> pair = softened(r2, softening.reach);
    potential += pair.potential * weight;
    for (int d = 0; d < D; ++d) acceleration[d] += away[d] * pair.force * weight;
  }
};

template <int D, typename T>
__global__ void sum_groups(const __grid_constant__ GroupSums<D, T> in) {
  int64_t row = thread_index();
  if (row >= in.places.rows) return;
  int64_t g = in.places.group[row];
  ParticleSums<D> sums{};
  for (int d = 0; d < D && g >= 0; ++d) sums.place[d] = in.places.place[row * D + d];
  const Softening softening(in.softening[0], in.spline);
  double period[3] = {1, 1, 1};
  bool has_images = in.images && D == 3;
  for (int d = 0; d < D && has_images; ++d) {
    period[d % 3] = in.places.box[d];
    has_images = period[d % 3] > 0;
  }
  const EwaldSum ewald(period);
  for (int64_t other = g < 0 ? 0 : in.places.begin(g), end = g < 0 ? 0 : in.places.end(g); other < end; ++other)
    sums.add(in.places.place + other * D, in.places.weight[other], other == row, softening,
             has_images ? &ewald : nullptr);
  in.potential[row] = static_cast<T>(-sums.potential);
  for (int d = 0; d < D && in.acceleration; ++d) in.acceleration[row * D + d] = static_cast<T>(sums.acceleration[d]);
}

template <int D, typename T>
void group_potential(Queue& queue, const GroupPotential<D, T>& in) {
  GroupSums<D, T> sums{
      group_places(queue, in.grouped, in.share), in.softening, in.spline, in.images, in.potential, in.acceleration};
  queue.launch_over(in.grouped.rows(), sum_groups<D, T>, sums);
}

}  // namespace

JZTREE_KERNEL(group_potential, GroupPotential);

}  // namespace jztree
