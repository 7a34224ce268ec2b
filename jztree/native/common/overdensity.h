// Spherical overdensities: where the mean density of all particles around a centre falls to a given one.
//
// The particles within a search radius are listed by distance. The sphere of the `least` nearest ones grows particle by
// particle as long as it is denser than a threshold: M_i particles' mass within r_i, the density at the next particle
// being M_i / V(r_{i+1}). It ends between the i-th and the next one, at R = (M_i / (V(1) density))^(1/D). A higher
// threshold ends no later than a lower one, so all are found on one way outwards. If the list ends before that, the
// sphere reaches at least to where the mass found so far would have the density wanted, since more mass only makes it
// larger; so the next list goes a little further than that. From one such radius to the next the error of its logarithm
// is divided by 3 (isothermal haloes), which takes a few lists, each longer than all before.
//
// Distances, masses and radii are float64, and masses are added in the order of distance, so the bits do not depend on
// the number of threads or devices.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "morton.h"
#include "portable.h"
#include "space.h"

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

template <int D>
JZTREE_BOTH inline double dimensional_root(double x) {
  if constexpr (D == 1) return x;
  if constexpr (D == 2) return std::sqrt(x);
  if constexpr (D == 3) return std::cbrt(x);
  return std::sqrt(std::sqrt(x));
}

// Densities in falling order, as the mass over the D-th power of the radius, and the column each has in the results.
struct Thresholds {
  const double* factor;
  const int32_t* column;
  int64_t count;
};

// Densities: anything with operator[].
template <int D, typename Densities>
JZTREE_BOTH void sort_thresholds(const Densities& density, int64_t count, double* factor, int32_t* column) {
  for (int64_t i = 0; i < count; ++i) {
    double value = unit_ball<D>() * density[i];
    int64_t place = i;
    for (; place > 0 && factor[place - 1] < value; --place) {
      factor[place] = factor[place - 1];
      column[place] = column[place - 1];
    }
    factor[place] = value;
    column[place] = static_cast<int32_t>(i);
  }
}

// A centre, and how far things are from it.
template <int D, typename T>
class Centre {
 public:
  // box: lengths, 0 where open.
  JZTREE_BOTH Centre(const T* pos, const double* box)
      : space_(box, T{}), half_box_(std::numeric_limits<double>::infinity()) {
    for (int d = 0; d < D; ++d) {
      place_[d] = wrap_wide(static_cast<double>(pos[d]), box[d]);
      period_[d] = box[d];
      inverse_period_[d] = box[d] > 0 ? 1 / box[d] : 0;
      if (box[d] > 0 && box[d] / 2 < half_box_) half_box_ = box[d] / 2;
    }
  }

  // Half the smallest period, beyond which a ball would meet its own images; infinite if there is none.
  JZTREE_BOTH double half_box() const { return half_box_; }

  // To the nearest image of a particle, right up to half a period.
  JZTREE_BOTH double distance2(const T* x) const {
    double sum = 0;
    for (int d = 0; d < D; ++d) {
      double difference = wrap_wide(static_cast<double>(x[d]), period_[d]) - place_[d];
      difference -= period_[d] * std::nearbyint(difference * inverse_period_[d]);
      sum += difference * difference;
    }
    return sum;
  }

  // A lower bound of the squared distance to what is in a box of wrapped coordinates.
  JZTREE_BOTH double gap2(const T* lower, const T* upper) const {
    double low[D], high[D];
    for (int d = 0; d < D; ++d) {
      low[d] = static_cast<double>(lower[d]);
      high[d] = static_cast<double>(upper[d]);
    }
    return space_.gap2(place_, place_, low, high);
  }

  // Boxes with a larger gap2 hold nothing within the radius.
  JZTREE_BOTH double gap2_within(double radius) const {
    double enlarged = space_.enlarged(radius);
    return enlarged * enlarged;
  }

  // The first radius to search. nearest: distance of the `least`-th nearest particle, rounded.
  JZTREE_BOTH double first_radius(T nearest) const {
    double radius = space_.enlarged(nearest);
    return radius < half_box_ ? radius : half_box_;
  }

 private:
  Space<D> space_;
  double place_[D], period_[D], inverse_period_[D], half_box_;
};

// Results, a row a centre.
template <typename T>
struct SphereRows {
  T *radius, *mass;  // (q, m)
  int32_t* count;    // (q, m)
  T* peak;           // (q, 2): largest root of mass over radius, and at which radius
  T* reach;          // (q,): the radius that the answer rests upon

  JZTREE_BOTH void clear(int64_t row, int64_t columns) const {
    for (int64_t i = row * columns; i < (row + 1) * columns; ++i) radius[i] = mass[i] = 0, count[i] = 0;
    peak[2 * row] = peak[2 * row + 1] = reach[row] = 0;
  }

  // Rounded up, so that nothing that the answer rests upon is outside.
  JZTREE_BOTH void write_reach(int64_t row, double value) const {
    reach[row] = static_cast<T>(value) * (1 + 4 * std::numeric_limits<T>::epsilon());
  }
};

// The way outwards from one centre.
// Near: distance2(i) and mass(i) of the i-th nearest particle.
template <int D, typename T, typename Near>
class SphereScan {
 public:
  // found: how many are listed, which are all within `searched`. all: there are no others.
  JZTREE_BOTH SphereScan(const Near& near, int64_t found, double searched, bool all, double half_box)
      : near_(near), found_(found), searched_(searched), half_box_(half_box), all_(all) {}

  // Writes the results of a row and returns -1; or the radius to search next if what is listed does not decide.
  JZTREE_BOTH double run(const Thresholds& thresholds, int64_t least, const SphereRows<T>& rows, int64_t row) {
    rows.clear(row, thresholds.count);
    if (found_ < least) {
      if (known() < half_box_) return limited(searched_ > 0 ? 2 * searched_ : half_box_);
      rows.write_reach(row, all_ ? std::numeric_limits<double>::infinity() : half_box_);
      return -1;
    }
    begin(thresholds, least);
    int64_t first = next_;
    double reach = std::sqrt(near_.distance2(inside_ - 1));
    while (next_ < thresholds.count) {
      double next2 = inside_ < found_ ? near_.distance2(inside_) : known() * known();
      end_spheres(thresholds, radius_power<D>(next2), rows, row, &reach);
      if (next_ == thresholds.count || inside_ == found_) break;
      take_next();
    }
    if (next_ < thresholds.count) {
      if (known() < half_box_) return limited(1.2 * end_of(thresholds.factor[thresholds.count - 1]));
      for (; next_ < thresholds.count; ++next_) write_endless(thresholds, rows, row);
      reach = half_box_;
    }
    if (first < thresholds.count) {
      rows.peak[2 * row] = static_cast<T>(std::sqrt(peak_));
      rows.peak[2 * row + 1] = static_cast<T>(peak_radius_);
    }
    rows.write_reach(row, reach);
    return -1;
  }

 private:
  // Nothing that is not listed is as near as that.
  JZTREE_BOTH double known() const { return all_ ? half_box_ : searched_; }
  JZTREE_BOTH double limited(double radius) const { return radius < half_box_ ? radius : half_box_; }
  JZTREE_BOTH double end_of(double factor) const { return dimensional_root<D>(mass_ / factor); }

  JZTREE_BOTH void take_next() {
    mass_ += near_.mass(inside_);
    double radius = std::sqrt(near_.distance2(inside_++));
    if (inside_ < least_ || !(mass_ > peak_ * radius) || !(radius > 0)) return;
    peak_ = mass_ / radius;
    peak_radius_ = radius;
  }

  // The sphere of the nearest particles, with all that are as far as the last of them. It leaves out the thresholds
  // that it is not denser than.
  JZTREE_BOTH void begin(const Thresholds& thresholds, int64_t least) {
    least_ = least;
    double edge2 = near_.distance2(least - 1);
    while (inside_ < found_ && near_.distance2(inside_) <= edge2) take_next();
    double power = radius_power<D>(edge2);
    while (next_ < thresholds.count && !(mass_ > thresholds.factor[next_] * power)) ++next_;
  }

  // Ends the spheres that are not denser than their threshold where the radius has this power.
  JZTREE_BOTH void end_spheres(const Thresholds& thresholds, double power, const SphereRows<T>& rows, int64_t row,
                               double* reach) {
    for (; next_ < thresholds.count && mass_ <= thresholds.factor[next_] * power; ++next_) {
      int64_t at = row * thresholds.count + thresholds.column[next_];
      double end = end_of(thresholds.factor[next_]);
      if (end > *reach) *reach = end;
      rows.radius[at] = static_cast<T>(end);
      rows.mass[at] = static_cast<T>(mass_);
      rows.count[at] = static_cast<int32_t>(inside_);
    }
  }

  JZTREE_BOTH void write_endless(const Thresholds& thresholds, const SphereRows<T>& rows, int64_t row) const {
    int64_t at = row * thresholds.count + thresholds.column[next_];
    rows.radius[at] = rows.mass[at] = std::numeric_limits<T>::quiet_NaN();
    rows.count[at] = -1;
  }

  const Near& near_;
  const int64_t found_;
  const double searched_, half_box_;
  const bool all_;
  int64_t least_ = 0, inside_ = 0, next_ = 0;
  double mass_ = 0, peak_ = 0, peak_radius_ = 0;
};

}  // namespace jztree
