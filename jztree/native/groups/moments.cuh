// Sums over groups (moments.h) by a warp.
#pragma once

#include "common/arguments.h"
#include "common/cuda/warp.cuh"
#include "moments.h"

namespace jztree {

// The box lengths are only known on the GPU.
template <int D, typename T>
__device__ GroupParticles<D, T> in_box(GroupParticles<D, T> particles, const Lengths& box) {
  for (int d = 0; d < D; ++d) particles.period[d] = box[d];
  return particles;
}

template <int D>
__device__ void reduce_warp(SumPass pass, Moments<D>& sums) {
  sums.change(
      pass, sums, [](double& sum, double) { sum = warp_sum(sum); },
      [](double& maximum, double) { maximum = warp_max(maximum); });
}

}  // namespace jztree
