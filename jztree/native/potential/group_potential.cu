// One thread per particle sums over its group directly, in float64. Not tuned on a GPU yet.

#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/warp.cuh"
#include "gravity.h"
#include "group_potential.h"
#include "groups/moments.cuh"

namespace jztree {
namespace {

template <int D, typename T>
struct GroupSums {
  GroupParticles<D, T> particles;
  Lengths box, softening;
  bool spline;
  Count groups;
  const int32_t *count, *offset;
  int64_t rows;
  int32_t* group;          // (n,), -1 for rows in no group
  double *place, *weight;  // (n, D), (n,); places are relative to the first particle in periodic dimensions
  T *potential, *acceleration;

  __device__ int64_t inside(int64_t at) const { return at < 0 ? 0 : at < rows ? at : rows; }
  __device__ int64_t begin(int64_t g) const { return inside(offset[g]); }
  __device__ int64_t end(int64_t g) const { return inside(static_cast<int64_t>(offset[g]) + count[g]); }
};

template <int D, typename T>
__global__ void take_group_places(const __grid_constant__ GroupSums<D, T> in) {
  int64_t g = thread_index() / warp_size;
  if (g >= in.groups()) return;
  GroupParticles<D, T> particles = in_box(in.particles, in.box);
  double first[D];
  if (in.begin(g) < in.end(g)) particles.place_of(in.begin(g), first);
  for (int64_t row = in.begin(g) + lane_index(); row < in.end(g); row += warp_size) {
    in.group[row] = static_cast<int32_t>(g);
    in.weight[row] = particles.mass_of(row);
    double* place = in.place + row * D;
    particles.place_of(row, place);
    for (int d = 0; d < D; ++d)
      if (particles.period[d] > 0) place[d] = nearest_difference(place[d], first[d], particles.period[d]);
  }
}

template <int D, typename T>
__global__ void sum_groups(const __grid_constant__ GroupSums<D, T> in) {
  int64_t row = thread_index();
  if (row >= in.rows) return;
  int64_t g = in.group[row];
  double own[D], potential = 0, acceleration[D] = {};
  for (int d = 0; d < D && g >= 0; ++d) own[d] = in.place[row * D + d];
  const Softening softening(in.softening[0], in.spline);
  for (int64_t other = g < 0 ? 0 : in.begin(g), end = g < 0 ? 0 : in.end(g); other < end; ++other) {
    double away[D], r2 = softening.length2;
    for (int d = 0; d < D; ++d) {
      away[d] = in.place[other * D + d] - own[d];
      r2 += away[d] * away[d];
    }
    if (other == row || (r2 == 0 && softening.reach == 0)) continue;
    double inverse = 1 / std::sqrt(r2);
    Attraction<double> pair{inverse, inverse * inverse * inverse};
    if (r2 < softening.reach * softening.reach) pair = spline(r2, softening.reach);
    potential += pair.potential * in.weight[other];
    for (int d = 0; d < D; ++d) acceleration[d] += away[d] * pair.force * in.weight[other];
  }
  in.potential[row] = static_cast<T>(-potential);
  for (int d = 0; d < D && in.acceleration; ++d) in.acceleration[row * D + d] = static_cast<T>(acceleration[d]);
}

template <int D, typename T>
void group_potential(Queue& queue, const GroupPotential<D, T>& in) {
  const GroupedParticles<D, T>& grouped = in.grouped;
  const int64_t rows = grouped.rows();
  GroupSums<D, T> sums{grouped.particles(),
                       grouped.box,
                       in.softening,
                       in.spline,
                       grouped.groups(),
                       grouped.count,
                       grouped.offset,
                       rows,
                       queue.scratch<int32_t>(rows),
                       queue.scratch<double>(rows * D),
                       queue.scratch<double>(rows),
                       in.potential,
                       in.acceleration};
  queue.fill_bytes(sums.group, 0xff, rows);
  queue.launch_warps(grouped.room(), take_group_places<D, T>, sums);
  queue.launch_over(rows, sum_groups<D, T>, sums);
}

}  // namespace

JZTREE_KERNEL(group_potential, GroupPotential);

}  // namespace jztree
