// Spherical overdensities: the spheres around a centre whose mean density, over all particles, falls to a given value.
//
// Particles are processed in the order of their distance. The sphere first holds the `min_count` nearest particles. It
// grows particle by particle until its density falls to a threshold. With the mass M_i of i particles within r_i, the
// density at the next particle is M_i / V(r_{i+1}). The sphere ends between particle i and the next one, at R = (M_i /
// (V(1) density))^(1/D). A higher threshold never ends later than a lower one, so one pass outwards finds all spheres.
// The search goes from shell to shell. If the last sphere has not ended in a shell, take the radius R at which the mass
// so far would have the given density. The sphere reaches at least to R, because more mass only makes it larger. So the
// next shell goes a little further than R. Each such step divides the error of the logarithm of the radius by 3
// (isothermal haloes), so a few shells are enough.
//
// Distances, masses and radii are float64. Masses are added in the order of distance, and at equal distance in the
// order of mass. All operations round alike on every machine. So the bits do not depend on the shells, on the number of
// threads or devices, or on whether the devices are GPUs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "common/periodic.h"
#include "common/portable.h"
#include "common/space.h"

namespace jztree {

constexpr int overdensity_dims = 4;

// The volume of the ball of radius 1.
template <int D>
JZTREE_BOTH constexpr double unit_ball() {
  constexpr double pi = 3.14159265358979323846;
  return D == 1 ? 2 : D == 2 ? pi : D == 3 ? 4 * pi / 3 : pi * pi / 2;
}

// The radius to the power of D, from its square.
template <int D>
JZTREE_BOTH inline double radius_power(double radius2) {
  if constexpr (D == 1) return std::sqrt(radius2);
  if constexpr (D == 2) return radius2;
  if constexpr (D == 3) return radius2 * std::sqrt(radius2);
  return radius2 * radius2;
}

// The cube root of a non-negative number, with an error of at most one in the last bit. The libraries for CPUs and GPUs
// round their cube roots differently.
JZTREE_BOTH inline double cube_root(double x) {
  if (!(x > 0) || std::isinf(x)) return x;
  int exponent = 0;
  double fraction = std::frexp(x, &exponent), root = 1;
  for (; exponent % 3 != 0; --exponent) fraction *= 2;
  // Newton's method for a number between 1/2 and 4.
  for (int i = 0; i < 7; ++i) root -= (root - fraction / (root * root)) / 3;
  return std::ldexp(root, exponent / 3);
}

template <int D>
JZTREE_BOTH inline double dimensional_root(double x) {
  if constexpr (D == 1) return x;
  if constexpr (D == 2) return std::sqrt(x);
  if constexpr (D == 3) return cube_root(x);
  return std::sqrt(std::sqrt(x));
}

// Densities in descending order, as the mass divided by the D-th power of the radius, and the column of each in the
// results.
struct Thresholds {
  const double* factor;
  const int32_t* column;
  int64_t count;
};

// Put the i-th density at its place in descending order. Densities: any type with operator[].
template <int D, typename Densities>
JZTREE_BOTH void place_threshold(const Densities& density, int64_t count, int64_t i, double* factor, int32_t* column) {
  double value = unit_ball<D>() * density[i];
  int64_t place = 0;
  for (int64_t j = 0; j < count; ++j) {
    double threshold = unit_ball<D>() * density[j];
    place += threshold > value || (threshold == value && j < i);
  }
  factor[place] = value;
  column[place] = static_cast<int32_t>(i);
}

// Masses of particles: one per particle, or a single one for all; null: every particle counts 1.
template <typename T>
struct Masses {
  const T* mass;
  bool shared;

  JZTREE_BOTH double operator[](int64_t row) const { return mass ? static_cast<double>(mass[shared ? 0 : row]) : 1.; }
};

// A centre, and distances from it.
template <int D, typename T>
class Centre {
 public:
  // box: lengths; 0 for open dimensions.
  JZTREE_BOTH Centre(const T* pos, const double* box)
      : space_(box, T{}), half_box_(std::numeric_limits<double>::infinity()) {
    for (int d = 0; d < D; ++d) {
      given_[d] = static_cast<double>(pos[d]);
      place_[d] = wrap_wide(given_[d], box[d]);
      period_[d] = box[d];
      if (box[d] > 0 && box[d] / 2 < half_box_) half_box_ = box[d] / 2;
    }
  }

  // Half the smallest period: a larger ball would meet its own images. Infinite in an open box.
  JZTREE_BOTH double half_box() const { return half_box_; }

  // The squared distance to the nearest image of a particle, from the unwrapped positions. It is exact up to half a
  // period.
  JZTREE_BOTH double distance2(const T* x) const {
    double sum = 0;
    for (int d = 0; d < D; ++d) {
      const double difference = nearest_difference(static_cast<double>(x[d]), given_[d], period_[d]);
      sum += difference * difference;
    }
    return sum;
  }

  // A lower bound of the squared distance to points in a box of wrapped coordinates.
  JZTREE_BOTH double gap2(const T* lower, const T* upper) const {
    double low[D], high[D];
    widen(lower, upper, low, high);
    return space_.gap2(place_, place_, low, high);
  }

  // An upper bound of the distance.
  JZTREE_BOTH double reach(const T* lower, const T* upper) const {
    double low[D], high[D];
    widen(lower, upper, low, high);
    return space_.reach(place_, place_, low, high);
  }

  // Boxes with a larger gap2 contain no particles within the radius.
  JZTREE_BOTH double gap2_within(double radius) const {
    double enlarged = space_.enlarged(radius);
    return enlarged * enlarged;
  }

  // The first radius to search. nearest: distance of the `min_count`-th nearest particle, rounded.
  JZTREE_BOTH double first_radius(T nearest) const {
    double radius = space_.enlarged(nearest);
    return radius < half_box_ ? radius : half_box_;
  }

 private:
  JZTREE_BOTH static void widen(const T* lower, const T* upper, double* low, double* high) {
    for (int d = 0; d < D; ++d) {
      low[d] = static_cast<double>(lower[d]);
      high[d] = static_cast<double>(upper[d]);
    }
  }

  Space<D> space_;
  double given_[D], place_[D], period_[D], half_box_;
};

// Results, one row per centre.
template <typename T>
struct SphereRows {
  T *radius, *mass;  // (q, m)
  int32_t* count;    // (q, m)
  T* peak;           // (q, 2): the largest sqrt(mass / radius), and its radius
  T* reach;          // (q,): the radius that the answer depends on

  JZTREE_BOTH void clear(int64_t row, int64_t columns) const {
    for (int64_t i = row * columns; i < (row + 1) * columns; ++i) radius[i] = mass[i] = 0, count[i] = 0;
    peak[2 * row] = peak[2 * row + 1] = reach[row] = 0;
  }

  // Rounded up, so that the answer does not depend on anything outside.
  JZTREE_BOTH void write_reach(int64_t row, double value) const {
    reach[row] = static_cast<T>(value) * (1 + 4 * std::numeric_limits<T>::epsilon());
  }
};

// The scan outwards from one centre. Its row of the results is cleared before.
template <int D, typename T>
class SphereScan {
 public:
  JZTREE_BOTH SphereScan(const Thresholds& thresholds, int64_t min_count, double half_box, const SphereRows<T>& rows,
                         int64_t row)
      : thresholds_(thresholds), rows_(rows), min_count_(min_count), row_(row), half_box_(half_box) {}

  // Take the next particle. If all spheres end before it, write their results and return false.
  JZTREE_BOTH bool take(double distance2, double mass) {
    if (inside_ >= min_count_ && distance2 > edge2_) {
      begin();
      end_spheres(radius_power<D>(distance2));
      if (next_ == thresholds_.count) {
        write_end();
        return false;
      }
    }
    mass_ += mass;
    if (++inside_ <= min_count_) edge2_ = distance2;
    if (inside_ >= min_count_) see_peak(mass_, std::sqrt(distance2));
    return true;
  }

  // Called when all particles within a radius have been taken. Writes the results and returns -1, or returns the next
  // radius to search if the particles do not decide. num: total number of particles.
  JZTREE_BOTH double close(double searched, int64_t num) {
    bool all = inside_ == num;
    double complete_to = all ? half_box_ : searched;  // all particles that were not taken are at least this far away
    if (inside_ < min_count_) {
      if (complete_to < half_box_) return further(searched, 0);
      rows_.write_reach(row_, all ? std::numeric_limits<double>::infinity() : half_box_);
      return -1;
    }
    begin();
    end_spheres(radius_power<D>(complete_to * complete_to));
    if (next_ < thresholds_.count) {
      if (complete_to < half_box_) return further(searched, 1.2 * end_of(thresholds_.factor[thresholds_.count - 1]));
      for (; next_ < thresholds_.count; ++next_) write_endless();
      reach_ = half_box_;
    }
    write_end();
    return -1;
  }

  // For callers that test several particles at once: whether spheres may end from here on; the mass so far; and whether
  // no sphere ends before a particle if the particles before it have the given mass.
  JZTREE_BOTH bool begun() const { return begun_; }
  JZTREE_BOTH double mass() const { return mass_; }
  JZTREE_BOTH bool passes(double distance2, double mass) const { return !ends(mass, radius_power<D>(distance2)); }
  // Take particles before which no sphere ends. mass: including them. peak: their largest `peak_of`, and its radius.
  JZTREE_BOTH void take_all(int64_t count, double mass, double peak, double radius) {
    inside_ += count;
    mass_ = mass;
    if (peak > peak_) peak_ = peak, peak_radius_ = radius;
  }
  JZTREE_BOTH static double peak_of(double mass, double radius) { return radius > 0 ? mass / radius : 0; }

 private:
  // The `radius` radius, unless an underflow made it too small to go further.
  JZTREE_BOTH double further(double searched, double radius) const {
    if (!(radius > searched)) radius = searched > 0 ? 2 * searched : half_box_;
    return radius < half_box_ ? radius : half_box_;
  }
  JZTREE_BOTH double end_of(double factor) const { return dimensional_root<D>(mass_ / factor); }
  JZTREE_BOTH bool ends(double mass, double power) const { return mass <= thresholds_.factor[next_] * power; }

  JZTREE_BOTH void see_peak(double mass, double radius) {
    // Most particles are far below the peak, and need no division.
    if (!(mass > peak_ * radius * (1 - 1e-15))) return;
    double peak = peak_of(mass, radius);
    if (peak > peak_) peak_ = peak, peak_radius_ = radius;
  }

  // Start with the sphere of the nearest particles, including all at the distance of the last one. Thresholds that
  // this sphere does not exceed are skipped.
  JZTREE_BOTH void begin() {
    if (begun_) return;
    begun_ = true;
    double power = radius_power<D>(edge2_);
    while (next_ < thresholds_.count && !(mass_ > thresholds_.factor[next_] * power)) ++next_;
    found_ = next_ < thresholds_.count;
    reach_ = std::sqrt(edge2_);
  }

  // End the spheres that are not denser than their threshold at the radius with this power.
  JZTREE_BOTH void end_spheres(double power) {
    for (; next_ < thresholds_.count && ends(mass_, power); ++next_) {
      int64_t place = row_ * thresholds_.count + thresholds_.column[next_];
      double end = end_of(thresholds_.factor[next_]);
      if (end > reach_) reach_ = end;
      rows_.radius[place] = static_cast<T>(end);
      rows_.mass[place] = static_cast<T>(mass_);
      rows_.count[place] = static_cast<int32_t>(inside_);
    }
  }

  JZTREE_BOTH void write_endless() const {
    int64_t place = row_ * thresholds_.count + thresholds_.column[next_];
    rows_.radius[place] = rows_.mass[place] = std::numeric_limits<T>::quiet_NaN();
    rows_.count[place] = -1;
  }

  JZTREE_BOTH void write_end() const {
    if (found_) {
      rows_.peak[2 * row_] = static_cast<T>(std::sqrt(peak_));
      rows_.peak[2 * row_ + 1] = static_cast<T>(peak_radius_);
    }
    rows_.write_reach(row_, reach_);
  }

  Thresholds thresholds_;
  SphereRows<T> rows_;
  int64_t min_count_, row_, inside_ = 0, next_ = 0;
  double half_box_, mass_ = 0, edge2_ = 0, reach_ = 0, peak_ = 0, peak_radius_ = 0;
  bool begun_ = false, found_ = false;  // found: any sphere
};

}  // namespace jztree
