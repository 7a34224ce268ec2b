// The sums over the particles of a group that give its catalogue row.
//
// Sums are float64, taken in three passes. Each pass needs the earlier ones over the whole group. First come masses;
// then centres, from nearest-image offsets to the group's first particle (correct for groups smaller than half the
// box); then spreads and angular momenta about the means. A group that straddles ranks is the sum of its parts in the
// order of the ranks, about the same first particle and the same means.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/periodic.h"
#include "common/portable.h"

namespace jztree {

constexpr int catalogue_dims = 4;  // the largest dimension of groups

enum class SumPass : int { masses, centres, spreads };

// Pairs of directions: i <= j of a symmetric tensor, and i < j of an antisymmetric one. In 3D the latter are yz, zx and
// xy, so that the tensor is the vector of the cross product; otherwise 01, 02, ..., 12, ....
template <int D>
struct Pairs {
  static constexpr int with_self = D * (D + 1) / 2, distinct = D * (D - 1) / 2;

  // Calls visit(number of the pair, i, j).
  template <typename Visit>
  JZTREE_BOTH static void visit_with_self(const Visit& visit) {
    int pair = 0;
    for (int i = 0; i < D; ++i)
      for (int j = i; j < D; ++j) visit(pair++, i, j);
  }

  template <typename Visit>
  JZTREE_BOTH static void visit_distinct(const Visit& visit) {
    int pair = 0;
    if (D == 3) {
      for (int i = 0; i < D; ++i) visit(i, (i + 1) % D, (i + 2) % D);
    } else {
      for (int i = 0; i < D; ++i)
        for (int j = i + 1; j < D; ++j) visit(pair++, i, j);
    }
  }
};

// The power of two that scales a number to between 1/2 and 1, limited to exponents of at most 1000 in size, so that it
// has an inverse. The scaling changes no digit.
JZTREE_BOTH inline double factor_to_one(double number) {
  constexpr int max_exponent = 1000;
  int exponent = 0;
  std::frexp(number, &exponent);
  return std::ldexp(1., exponent > max_exponent ? -max_exponent : exponent < -max_exponent ? max_exponent : -exponent);
}

// Sums over a group, or over one rank's part of a group. All members are doubles, so ranks can send the struct as
// words.
template <int D>
struct Moments {
  double count, mass;
  double first[D];     // position of the group's first particle
  double centre[D];    // weighted offsets to it
  double velocity[D];  // weighted velocities
  double reach, pace;  // the largest absolute component of an offset and of a velocity
  // Sums about the means, in units that make reach and pace about 1: weighted products of two coordinates, of a
  // coordinate and a velocity, and of two velocities. Also the largest squared distance. In 1D nothing rotates, but C++
  // forbids empty arrays.
  double inertia[Pairs<D>::with_self];
  double rotation[D > 1 ? Pairs<D>::distinct : 1];
  double dispersion, distance2;

  // Massless groups still have a centre: the unweighted one.
  JZTREE_BOTH bool weighted() const { return mass > 0; }
  // Factors for masses, lengths and velocities. They keep all products in the range of float64 for any unit.
  JZTREE_BOTH double mass_factor() const { return factor_to_one(mass); }
  JZTREE_BOTH double length_factor() const { return factor_to_one(reach); }
  JZTREE_BOTH double speed_factor() const { return factor_to_one(pace); }
  JZTREE_BOTH double norm() const { return weighted() ? mass * mass_factor() : count; }

  // Call sum(mine, other's) for each sum of a pass, and largest(mine, other's) for each maximum.
  template <typename Sum, typename Largest>
  JZTREE_BOTH void change(SumPass pass, const Moments& other, const Sum& sum, const Largest& largest) {
    if (pass == SumPass::masses) {
      sum(count, other.count);
      sum(mass, other.mass);
    } else if (pass == SumPass::centres) {
      for (int d = 0; d < D; ++d) sum(centre[d], other.centre[d]);
      for (int d = 0; d < D; ++d) sum(velocity[d], other.velocity[d]);
      largest(reach, other.reach);
      largest(pace, other.pace);
    } else {
      for (int pair = 0; pair < Pairs<D>::with_self; ++pair) sum(inertia[pair], other.inertia[pair]);
      for (int pair = 0; pair < Pairs<D>::distinct; ++pair) sum(rotation[pair], other.rotation[pair]);
      sum(dispersion, other.dispersion);
      largest(distance2, other.distance2);
    }
  }

  // Add the results of a pass for a part that comes later in the order of particles.
  JZTREE_BOTH void join(SumPass pass, const Moments& part) {
    change(
        pass, part, [](double& sum, double part_sum) { sum += part_sum; },
        [](double& maximum, double part_maximum) { maximum = std::max(maximum, part_maximum); });
  }

  JZTREE_BOTH void join(const Moments& part) {
    join(SumPass::masses, part);
    join(SumPass::centres, part);
    join(SumPass::spreads, part);
  }

  // Copy the results of a pass from `part`; everything else stays unchanged.
  JZTREE_BOTH void take(SumPass pass, const Moments& part) {
    auto set = [](double& target, double value) { target = value; };
    change(pass, part, set, set);
    for (int d = 0; d < D && pass == SumPass::masses; ++d) first[d] = part.first[d];
  }

  // The centre as an offset to the first particle, and the mean velocity.
  JZTREE_BOTH void means(double* offset, double* speed) const {
    for (int d = 0; d < D; ++d) {
      offset[d] = centre[d] / norm();
      speed[d] = velocity[d] / norm();
    }
  }
};

// Particles in group order. mass and vel may be null; the period is 0 for an open box.
template <int D, typename T>
struct GroupParticles {
  const T *pos, *mass, *vel;
  bool shared_mass;
  double period[D];

  JZTREE_BOTH double mass_of(int64_t row) const { return mass ? static_cast<double>(mass[shared_mass ? 0 : row]) : 1.; }

  // The offset from a place to the nearest image of a particle.
  JZTREE_BOTH void offset(int64_t row, const double* from, double* out) const {
    for (int d = 0; d < D; ++d) out[d] = nearest_difference(static_cast<double>(pos[row * D + d]), from[d], period[d]);
  }

  JZTREE_BOTH void place_of(int64_t row, double* place) const {
    for (int d = 0; d < D; ++d) place[d] = static_cast<double>(pos[row * D + d]);
  }
};

// The contributions of particles to the sums of a pass over their group. group: the sums of the earlier passes over the
// whole group, or over this rank's part if the rank holds the whole group.
template <int D, typename T>
class RowSums {
 public:
  JZTREE_BOTH RowSums(const GroupParticles<D, T>& particles, SumPass pass, const Moments<D>& group)
      : particles_(particles), group_(group), pass_(pass), weighted_(group.weighted()) {
    if (pass == SumPass::masses) return;
    factor_ = group.mass_factor();
    if (pass == SumPass::centres) return;
    length_factor_ = group.length_factor();
    speed_factor_ = group.speed_factor();
    group.means(centre_, velocity_);
  }

  // Sum over every `step`-th of the rows [begin, end).
  JZTREE_BOTH Moments<D> of(int64_t begin, int64_t end, int64_t step) const {
    Moments<D> part{};
    if (pass_ == SumPass::masses) {
      for (int64_t row = begin; row < end; row += step) add_mass(row, part);
    } else if (pass_ == SumPass::centres) {
      for (int64_t row = begin; row < end; row += step) add_centre(row, part);
    } else {
      for (int64_t row = begin; row < end; row += step) add_spread(row, part);
    }
    return part;
  }

  JZTREE_BOTH void add(int64_t row, Moments<D>& part) const {
    if (pass_ == SumPass::masses) return add_mass(row, part);
    if (pass_ == SumPass::centres) return add_centre(row, part);
    add_spread(row, part);
  }

 private:
  JZTREE_BOTH double weight(int64_t row) const { return weighted_ ? particles_.mass_of(row) * factor_ : 1.; }

  JZTREE_BOTH void add_mass(int64_t row, Moments<D>& part) const {
    part.count += 1;
    part.mass += particles_.mass_of(row);
  }

  JZTREE_BOTH void add_centre(int64_t row, Moments<D>& part) const {
    double between[D], w = weight(row);
    particles_.offset(row, group_.first, between);
    for (int d = 0; d < D; ++d) {
      part.centre[d] += w * between[d];
      part.reach = std::max(part.reach, std::fabs(between[d]));
      if (!particles_.vel) continue;
      double speed = static_cast<double>(particles_.vel[row * D + d]);
      part.velocity[d] += w * speed;
      part.pace = std::max(part.pace, std::fabs(speed));
    }
  }

  JZTREE_BOTH void add_spread(int64_t row, Moments<D>& part) const {
    double between[D], w = weight(row), distance2 = 0;
    // The image is the one that is nearest to the first particle, as in the pass before. Another image may be nearer to
    // the centre if the group is wider than half the box.
    particles_.offset(row, group_.first, between);
    for (int d = 0; d < D; ++d) between[d] = (between[d] - centre_[d]) * length_factor_;
    for (int d = 0; d < D; ++d) distance2 += between[d] * between[d];
    part.distance2 = std::max(part.distance2, distance2);
    Pairs<D>::visit_with_self([&](int pair, int i, int j) { part.inertia[pair] += w * between[i] * between[j]; });
    if (particles_.vel) add_motion(row, w, between, part);
  }

  // between: from the centre of the group to the particle, multiplied by its factor.
  JZTREE_BOTH void add_motion(int64_t row, double w, const double* between, Moments<D>& part) const {
    double relative[D], speed2 = 0;
    for (int d = 0; d < D; ++d) {
      relative[d] = (static_cast<double>(particles_.vel[row * D + d]) - velocity_[d]) * speed_factor_;
      speed2 += relative[d] * relative[d];
    }
    part.dispersion += w * speed2;
    Pairs<D>::visit_distinct([&](int pair, int i, int j) {
      part.rotation[pair] += w * (between[i] * relative[j] - between[j] * relative[i]);
    });
  }

  const GroupParticles<D, T>& particles_;
  const Moments<D>& group_;
  SumPass pass_;
  bool weighted_;
  double factor_ = 1, length_factor_ = 1, speed_factor_ = 1;
  double centre_[D] = {}, velocity_[D] = {};
};

// The columns of the catalogue. The columns from `velocity` on are empty if the particles have no velocities. shape:
// the inertia tensor divided by its trace; the trace is the square of the size, which may leave the range of T.
template <int D, typename T>
struct CatalogueColumns {
  T *mass, *centre, *size, *radius, *shape, *velocity, *dispersion, *rotation;

  JZTREE_BOTH void write(int64_t group, const Moments<D>& sums, const double* period, bool moving) const {
    double offset[D], speed[D];
    sums.means(offset, speed);
    mass[group] = static_cast<T>(sums.mass);
    for (int d = 0; d < D; ++d) {
      T inside = wrap(static_cast<T>(wrap(sums.first[d] + offset[d], period[d])), period[d]);
      // Rounding may move a centre just below the upper end to the upper end, which is the same place as 0.
      centre[group * D + d] = period[d] > 0 && static_cast<double>(inside) >= period[d] ? T{0} : inside;
    }
    radius[group] = static_cast<T>(std::sqrt(sums.distance2) / sums.length_factor());
    write_shape(group, sums);
    if (moving) write_motion(group, sums, speed);
  }

 private:
  JZTREE_BOTH void write_shape(int64_t group, const Moments<D>& sums) const {
    double trace = 0;
    T* tensor = shape + group * D * D;
    Pairs<D>::visit_with_self([&](int pair, int i, int j) { trace += i == j ? sums.inertia[pair] : 0; });
    size[group] = static_cast<T>(std::sqrt(trace / sums.norm()) / sums.length_factor());
    Pairs<D>::visit_with_self([&](int pair, int i, int j) {
      tensor[i * D + j] = tensor[j * D + i] = trace > 0 ? static_cast<T>(sums.inertia[pair] / trace) : T{0};
    });
  }

  // Means over particles.
  JZTREE_BOTH void write_motion(int64_t group, const Moments<D>& sums, const double* speed) const {
    double norm = sums.norm(), length_factor = sums.length_factor(), speed_factor = sums.speed_factor();
    for (int d = 0; d < D; ++d) velocity[group * D + d] = static_cast<T>(speed[d]);
    dispersion[group] = static_cast<T>(std::sqrt(sums.dispersion / norm / D) / speed_factor);
    for (int pair = 0; pair < Pairs<D>::distinct; ++pair)
      rotation[group * Pairs<D>::distinct + pair] =
          static_cast<T>(sums.rotation[pair] / norm / length_factor / speed_factor);
  }
};

// The groups that a rank holds only in part. The head continues the last group of the previous ranks. The tail is the
// last group that begins here; it may continue on the next ranks.
template <int D>
struct Ends {
  Moments<D> head, tail;
};

// The ends of every rank.
template <int D>
struct AllEnds {
  const Ends<D>* ends;
  int64_t ranks;

  JZTREE_BOTH bool has(int64_t rank) const { return rank >= 0 && rank < ranks; }

  // The last group that begins on this rank, over all its parts.
  JZTREE_BOTH Moments<D> tail_group(int64_t rank) const {
    Moments<D> group = ends[rank].tail;
    for (int64_t r = rank + 1; r < ranks && ends[r].head.count > 0; ++r) {
      group.join(ends[r].head);
      if (ends[r].tail.count > 0) break;
    }
    return group;
  }

  // The sums over all parts of the group that this rank's head continues.
  JZTREE_BOTH Moments<D> head_group(int64_t rank) const {
    int64_t owner = rank - 1;
    while (owner > 0 && ends[owner].tail.count == 0) --owner;
    return has(owner) ? tail_group(owner) : Moments<D>{};
  }
};

}  // namespace jztree
