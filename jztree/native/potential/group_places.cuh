// The places and masses of particles in groups, for sums over all pairs of a group.
#pragma once

#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/warp.cuh"
#include "gravity.h"
#include "group_potential.h"
#include "groups/moments.cuh"

namespace jztree {

template <int D, typename T>
struct GroupPlaces {
  GroupParticles<D, T> particles;
  Lengths box;
  Count groups;
  const int32_t *count, *offset;
  int64_t rows;
  Share share;
  int32_t* group;          // (n,), -1 for rows in no group or share
  double *place, *weight;  // (n, D), (n,); places are relative to the first particle in periodic dimensions

  GroupPlaces(Queue& queue, const GroupedParticles<D, T>& grouped, const Share& wanted)
      : particles(grouped.particles()),
        box(grouped.box),
        groups(grouped.groups()),
        count(grouped.count),
        offset(grouped.offset),
        rows(grouped.rows()),
        share(wanted),
        group(queue.scratch<int32_t>(rows)),
        place(queue.scratch<double>(rows * D)),
        weight(queue.scratch<double>(rows)) {}

  __device__ int64_t inside(int64_t row) const { return row < 0 ? 0 : row < rows ? row : rows; }
  __device__ int64_t begin(int64_t g) const { return inside(offset[g]); }
  __device__ int64_t end(int64_t g) const { return inside(static_cast<int64_t>(offset[g]) + count[g]); }
};

template <int D, typename T>
__global__ void write_group_places(const __grid_constant__ GroupPlaces<D, T> in) {
  int64_t g = thread_index() / warp_size;
  if (g >= in.groups()) return;
  GroupParticles<D, T> particles = in_box(in.particles, in.box);
  double first[D];
  if (in.begin(g) < in.end(g)) particles.place_of(in.begin(g), first);
  const int64_t size = in.end(g) - in.begin(g);
  const int64_t first_wanted = in.begin(g) + in.share.begin(size), last_wanted = in.begin(g) + in.share.end(size);
  for (int64_t row = in.begin(g) + lane_index(); row < in.end(g); row += warp_size) {
    in.group[row] = first_wanted <= row && row < last_wanted ? static_cast<int32_t>(g) : -1;
    in.weight[row] = particles.mass_of(row);
    double* place = in.place + row * D;
    particles.place_of(row, place);
    for (int d = 0; d < D; ++d)
      if (particles.period[d] > 0) place[d] = nearest_difference(place[d], first[d], particles.period[d]);
  }
}

template <int D, typename T>
GroupPlaces<D, T> group_places(Queue& queue, const GroupedParticles<D, T>& grouped, const Share& wanted) {
  GroupPlaces<D, T> places(queue, grouped, wanted);
  queue.fill_bytes(places.group, 0xff, places.rows);
  queue.launch_warps(grouped.room(), write_group_places<D, T>, places);
  return places;
}

}  // namespace jztree
