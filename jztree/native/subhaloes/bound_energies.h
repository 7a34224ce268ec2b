// The energies of the particles of candidates for subhaloes, each in the frame of its candidate's core.
//
// The centre of a candidate is its particle of lowest potential, the first row of equal ones. The core consists of the
// particles with the lowest keys, a tenth of the candidate but at least `least_core`; of equal keys, the first rows.
// The frame moves with the mean velocity of the core. Velocities relative to the frame include the Hubble flow.
#pragma once

#include "common/arguments.h"
#include "groups/catalogue.h"

namespace jztree {

constexpr int64_t least_core = 20, core_share = 10;

JZTREE_BOTH inline int64_t core_size(int64_t count) {
  const int64_t size = count / core_share > least_core ? count / core_share : least_core;
  return size < count ? size : count;
}

template <int D, typename T>
struct BoundEnergies {
  static constexpr unsigned compiled_dims = dims_up_to(3);

  GroupedParticles<D, T> grouped;  // candidates are its groups
  Array<const T> internal;         // (n,), internal energies per mass, or no elements
  const T* potential;              // (n,), sums of mass over length
  const T* key;                    // (n,)
  Lengths constants;               // the constant of gravity, the Hubble constant, and the scale factor
  Array<T> state;                  // (n, 3): energy, potential, distance from the centre; undefined outside of groups
  int32_t* centre;                 // (candidates,), the row of the centre; -1 without particles
  T* velocity;                     // (candidates, D), of the frame

  explicit BoundEnergies(Arguments& in)
      : grouped(in),
        internal(in.argument<T>("internal", {any})),
        potential(in.argument<T>("potential", {grouped.rows()})),
        key(in.argument<T>("key", {grouped.rows()})),
        constants(in.lengths("constants", 3)),
        state(in.result<T>("state", {grouped.rows(), 3})),
        centre(in.result<int32_t>("centre", {grouped.room()})),
        velocity(in.result<T>("velocity", {grouped.room(), D})) {
    in.expect(grouped.moving(), grouped.vel, 2, "vel", "of the length of pos");
    in.expect(internal.rows() == 0 || internal.rows() == grouped.rows(), internal, 1, "internal",
              "of the length of pos, or without elements");
  }
};

// Writes the state of a row.
template <int D, typename T>
struct Frame {
  GroupParticles<D, T> particles;
  const T *internal, *potential;
  T* state;
  double gravity, hubble, place[D], velocity[D];  // both constants relate velocities to lengths of the positions

  JZTREE_BOTH void take(const Lengths& constants) {
    gravity = constants[0] / constants[2];
    hubble = constants[1] * constants[2];
  }

  JZTREE_BOTH void write(int64_t row) const {
    double between[D], distance2 = 0, speed2 = 0;
    particles.offset(row, place, between);
    for (int d = 0; d < D; ++d) {
      const double speed = static_cast<double>(particles.vel[row * D + d]) - velocity[d] + hubble * between[d];
      distance2 += between[d] * between[d];
      speed2 += speed * speed;
    }
    const double heat = internal ? static_cast<double>(internal[row]) : 0.;
    const double deep = gravity * static_cast<double>(potential[row]);
    state[3 * row] = static_cast<T>(speed2 / 2 + heat + deep);
    state[3 * row + 1] = static_cast<T>(deep);
    state[3 * row + 2] = static_cast<T>(std::sqrt(distance2));
  }
};

}  // namespace jztree
