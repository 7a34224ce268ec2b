// The particle of lowest potential in each group, by the gravity of the group's own particles (potential_bounds.h).
#pragma once

#include "common/arguments.h"
#include "groups/catalogue.h"

namespace jztree {

template <int D, typename T>
struct LowestPotential {
  static constexpr unsigned compiled_dims = dims_up_to(catalogue_dims);

  GroupedParticles<D, T> grouped;  // velocities are not used
  Lengths softening;               // a single one
  int32_t* row;                    // (capacity,), -1 after the last group
  T* potential;                    // (capacity,), negative: sums of mass over length

  explicit LowestPotential(Arguments& in)
      : grouped(in),
        softening(in.lengths("softening", 1)),
        row(in.result<int32_t>("row", {grouped.room()})),
        potential(in.result<T>("potential", {grouped.room()})) {}
};

}  // namespace jztree
