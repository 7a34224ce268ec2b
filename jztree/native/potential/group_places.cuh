// The places and masses of particles in groups, for sums over all pairs of a group.
#pragma once

#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/warp.cuh"
#include "gravity.h"
#include "group_potential.h"
#include "groups/moments.cuh"

namespace jztree {

// Particles in group order.
template <int D>
struct GroupRows {
  Lengths box;
  Count groups;
  const int32_t *count, *offset;
  int64_t rows;
  Share share;
  int32_t* group;          // (n,), -1 for rows in no group
  double *place, *weight;  // (n, D), (n,); places are relative to the first particle in periodic dimensions

  __device__ int64_t inside(int64_t row) const { return row < 0 ? 0 : row < rows ? row : rows; }
  __device__ int64_t begin(int64_t g) const { return inside(offset[g]); }
  __device__ int64_t end(int64_t g) const { return inside(static_cast<int64_t>(offset[g]) + count[g]); }
  __device__ int64_t size(int64_t g) const { return end(g) - begin(g); }
  // Add or take away a period if this is nearer. period: of a dimension, 0 if it is open.
  __device__ static double nearest(double difference, double period) {
    if (!(period > 0)) return difference;
    if (difference > period / 2) return difference - period;
    return difference < -period / 2 ? difference + period : difference;
  }
  // The group of a row, or -1 for rows in no group or in the share of another device.
  __device__ int64_t group_in_share(int64_t row) const {
    const int64_t g = group[row];
    if (g < 0 || row < begin(g) + share.begin(size(g)) || row >= begin(g) + share.end(size(g))) return -1;
    return g;
  }
};

template <int D, typename T>
struct GroupPlaces : GroupRows<D> {
  GroupParticles<D, T> particles;

  GroupPlaces(Queue& queue, const GroupedParticles<D, T>& grouped, const Share& wanted)
      : GroupRows<D>{grouped.box,
                     grouped.groups(),
                     grouped.count,
                     grouped.offset,
                     grouped.rows(),
                     wanted,
                     queue.scratch<int32_t>(grouped.rows()),
                     queue.scratch<double>(grouped.rows() * D),
                     queue.scratch<double>(grouped.rows())},
        particles(grouped.particles()) {}

  // The place of a particle of a group.
  __device__ void take_place(int64_t g, int64_t row, double* to) const {
    const GroupParticles<D, T> in = in_box(particles, this->box);
    double first[D];
    in.place_of(this->begin(g), first);
    in.place_of(row, to);
    for (int d = 0; d < D; ++d)
      if (in.period[d] > 0) to[d] = nearest_difference(to[d], first[d], in.period[d]);
  }
};

// A warp per group.
template <int D>
__global__ void number_group_rows(const __grid_constant__ GroupRows<D> in) {
  int64_t g = thread_index() / warp_size;
  if (g >= in.groups()) return;
  for (int64_t row = in.begin(g) + lane_index(); row < in.end(g); row += warp_size)
    in.group[row] = static_cast<int32_t>(g);
}

template <int D, typename T>
__global__ void write_group_places(const __grid_constant__ GroupPlaces<D, T> in) {
  int64_t row = thread_index();
  if (row >= in.rows || in.group[row] < 0) return;
  in.take_place(in.group[row], row, in.place + row * D);
  in.weight[row] = in.particles.mass_of(row);
}

template <int D, typename T>
GroupPlaces<D, T> group_places(Queue& queue, const GroupedParticles<D, T>& grouped, const Share& wanted) {
  GroupPlaces<D, T> places(queue, grouped, wanted);
  queue.fill_bytes(places.group, 0xff, places.rows);
  queue.launch_warps(grouped.room(), number_group_rows<D>, places);
  queue.launch_over(places.rows, write_group_places<D, T>, places);
  return places;
}

}  // namespace jztree
