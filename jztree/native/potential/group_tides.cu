// One thread per particle sums over its group directly, in float64.

#include <cstdint>

#include "group_places.cuh"
#include "group_tides.h"

namespace jztree {
namespace {

template <int D, typename T>
struct TideSums {
  GroupPlaces<D, T> places;
  const T* moves;
  Lengths softening;
  bool spline, transposed;
  T* change;
};

template <int D, typename T>
__global__ void sum_tides(const __grid_constant__ TideSums<D, T> in) {
  int64_t row = thread_index();
  if (row >= in.places.rows) return;
  int64_t g = in.places.group_in_share(row);
  double period[D], own[D], own_move[D], change[D] = {}, own_weight = g < 0 ? 0 : in.places.weight[row];
  for (int d = 0; d < D && g >= 0; ++d) {
    own[d] = in.places.place[row * D + d];
    own_move[d] = static_cast<double>(in.moves[row * D + d]);
  }
  in.places.box.read(period);
  const Softening softening(in.softening[0], in.spline);
  for (int64_t source = g < 0 ? 0 : in.places.begin(g), end = g < 0 ? 0 : in.places.end(g); source < end; ++source) {
    if (source == row) continue;
    const double weight = in.places.weight[source], factor = in.transposed ? own_weight : weight;
    double away[D], move[D], r2 = softening.length2, along = 0;
    for (int d = 0; d < D; ++d) {
      away[d] = in.places.nearest(in.places.place[source * D + d] - own[d], period[d]);
      move[d] = static_cast<double>(in.moves[source * D + d]) * factor - own_move[d] * weight;
      r2 += away[d] * away[d];
      along += away[d] * move[d];
    }
    const Attraction<double> pair = softened(r2, softening.reach);
    for (int d = 0; d < D; ++d) change[d] += move[d] * pair.force - away[d] * (along * pair.bend);
  }
  for (int d = 0; d < D; ++d) in.change[row * D + d] = static_cast<T>(change[d]);
}

template <int D, typename T>
void group_tides(Queue& queue, const GroupTides<D, T>& in) {
  TideSums<D, T> sums{
      group_places(queue, in.grouped, in.share), in.grouped.vel, in.softening, in.spline, in.transposed, in.change};
  queue.launch_over(in.grouped.rows(), sum_tides<D, T>, sums);
}

}  // namespace

JZTREE_KERNEL(group_tides, GroupTides);

}  // namespace jztree
