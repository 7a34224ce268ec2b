// Which nodes are far enough from a run of particles to count as a whole, and their fields. group_walk.h has the
// reasons.
//
// V: a number, or a vector with a lane per target. Real: float or double; places are relative to the middle of the run.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "gravity.h"
#include "gravity_node.h"

namespace jztree {

constexpr double loose_acceleration = 0.35, image_tightness = 1.3;
JZTREE_BOTH inline double node_tolerance(double error) {
  return error < 1e-3 ? 0.6 * error : std::min(4.5 * error, 6e-3);
}
// With a smaller error, all distances are in float64. The terms of the images almost cancel, above all in
// accelerations.
constexpr double least_narrow_error = 1e-5, least_narrow_image_error = 1e-3, least_narrow_image_acceleration = 1e-2;
JZTREE_BOTH inline double least_narrow(bool images, bool accelerate) {
  if (!images) return least_narrow_error;
  return accelerate ? least_narrow_image_acceleration : least_narrow_image_error;
}
// The relative error of the potentials in a first walk, which estimates the accelerations.
constexpr double first_error = 0.004;

// How exact the sums must be: the fractions of `scale()`, and of the smallest acceleration of the run.
struct Accuracy {
  double potential, acceleration;
};

// The errors that a node may cause in the potentials and the accelerations of a run.
struct NodeLimits {
  double potential = 0, acceleration = 0;

  NodeLimits() = default;
  // images: the number of images of each node.
  JZTREE_BOTH NodeLimits(const Accuracy& accuracy, double scale, int64_t images) {
    const double tight = images == 1 ? 1 : image_tightness / std::sqrt(static_cast<double>(images));
    potential = tight * node_tolerance(accuracy.potential) * scale;
    acceleration = loose_acceleration * (accuracy.potential < 1e-3 ? tight : 1) * accuracy.acceleration;
  }
};

// The particles of a run.
template <int D>
struct RunBox {
  double lower[D], upper[D], middle[D];
  double reach, reach2;  // no particle is farther from the middle; squared
  double near2;          // sources at most this squared distance away are summed in float64

  // From lower and upper. narrow_gap: in sizes of the run, from which float32 is exact enough; 0 in float64.
  // least_square: no square of a distance in float32 is smaller, so that its powers are normal numbers.
  JZTREE_BOTH void measure(double narrow_gap, double least_square, const Softening& softening) {
    double size2 = 0;
    for (int d = 0; d < D; ++d) {
      middle[d] = lower[d] + (upper[d] - lower[d]) / 2;
      size2 += (upper[d] - lower[d]) * (upper[d] - lower[d]);
    }
    reach2 = size2 / 4, reach = std::sqrt(reach2);
    near2 = narrow_gap > 0 ? std::max(size2 * narrow_gap * narrow_gap, least_square) : 0;
    near2 = std::max(near2, softening.reach * softening.reach);
  }

  // The squared distance to a box.
  JZTREE_BOTH double gap2(const double* below, const double* above) const {
    double sum = 0;
    for (int d = 0; d < D; ++d) {
      const double gap = std::max(std::max(lower[d] - above[d], below[d] - upper[d]), 0.);
      sum += gap * gap;
    }
    return sum;
  }

  // The share of a node in an estimate of the smallest sum of |m| / r. Without softening, particles at the places of
  // all particles of the run do not count.
  JZTREE_BOTH double term(const GravityNode<D>& node, const Softening& softening) const {
    double distance2 = 0;
    for (int d = 0; d < D; ++d) distance2 += (node.centre[d] - middle[d]) * (node.centre[d] - middle[d]);
    const double distance = std::sqrt(distance2) + reach;
    // The spline has about its largest value, 2.8 / reach, up to a distance of reach / 2.8.
    const double width = std::max(std::sqrt(distance * distance + softening.length2), softening.reach / 2.8);
    return width > 0 ? node.size / width : 0;
  }

  // A test without a root that no far node fails. rho2: the square of `rho` of is_far().
  JZTREE_BOTH bool may_be_far(const GravityNode<D>& node, double gap2, double rho2, const NodeLimits& limits) const {
    return rho2 > node.reach * node.reach && node.spread <= limits.potential * (rho2 * rho2) && gap2 > near2;
  }
  // gap2: from the node's centre; rho: the distance, with the softening.
  template <bool Accelerate>
  JZTREE_BOTH bool is_far(const GravityNode<D>& node, double gap2, double rho, const NodeLimits& limits,
                          const Softening& softening) const {
    const double rho3 = rho * rho * rho, margin = rho - node.reach;
    bool far = margin > 0 && node.spread <= limits.potential * rho3 * margin && gap2 > near2;
    if (far && Accelerate) far = 4 * node.spread <= limits.acceleration * rho3 * margin * margin;
    return far && (softening.reach <= 0 || margin >= softening.reach);
  }
};

// Relative to half a period; above the rounding of positions in T.
template <typename T>
constexpr double halfway_width = sizeof(T) == sizeof(float) ? 1e-6 : 1e-14;

// Which particles of a source are the nearest images for particles of a run.
enum class Nearest { all, some, none };

// How sums over images treat the nearest ones: only these are softened by Plummer's rule or, in a group that is wider
// than half the box, only these count.
template <int D>
struct NearestImages {
  double length2 = 0;
  bool is_softened = false;  // while other images are not
  bool only = false;
  double halfway = 0;  // relative to `half`; sources that are this close to half a period away have two nearest images
  double half[D];      // half the period, or infinity; no farther particle is the nearest image

  NearestImages() = default;
  // period: 0 in open dimensions. all: whether all images count. width: halfway_width of the positions.
  JZTREE_BOTH NearestImages(const double* period, bool only_nearest, bool all, const Softening& softening, double width)
      : length2(softening.length2),
        is_softened(all && softening.length2 > 0),
        only(only_nearest),
        halfway(is_softened ? width : 0) {
    for (int d = 0; d < D; ++d) half[d] = period[d] > 0 ? period[d] / 2 : std::numeric_limits<double>::infinity();
  }

  JZTREE_BOTH Nearest of(const RunBox<D>& box, const double* centre, double reach) const {
    bool every = true;
    for (int d = 0; d < D && (is_softened || only); ++d) {
      const double distance = std::fabs(centre[d] - box.middle[d]);
      const double extent = ((box.upper[d] - box.lower[d]) / 2 + reach) * (1 + 1e-12);
      if (distance - extent > half[d] * (1 + halfway_width<float>)) return Nearest::none;
      every = every && distance + extent < half[d] * (1 - halfway_width<float>);
    }
    return every ? Nearest::all : Nearest::some;
  }

  // The distance, in halves of the period, that a source can move in dimension d before another image is the nearest;
  // negative if another is. The difference to the source itself decides for all images.
  template <typename V>
  JZTREE_BOTH V depth(const V& difference, double shift, int d) const {
    if (half[d] == std::numeric_limits<double>::infinity()) return V(1.);
    const double inverse = 1 / half[d];
    if (std::fabs(shift) > 3 * half[d]) return V(-1.);
    if (shift > 0) return (V(-half[d]) - difference) * inverse;
    if (shift < 0) return (difference - V(half[d])) * inverse;
    return (V(half[d]) - larger<V>(difference, -difference)) * inverse;
  }

  // The share of an image that is the nearest in a dimension: 1, 0, or 1/2 of both images of a source half a period
  // away, so that forces of symmetric images cancel. Positions of lattices are rounded, so a small range of distances
  // counts as half a period if images only differ in softening.
  template <typename V>
  JZTREE_BOTH V share(const V& depth) const {
    const V none(0.), width(halfway);
    return choose(depth > width, V(1.), choose(depth < -width, none, V(0.5)));
  }

  // The squared softening of a node. If only some of its particles are softened, its centre decides, so at most one of
  // its images counts as softened.
  JZTREE_BOTH double length2_of(const RunBox<D>& box, Nearest image, const double* centre) const {
    bool inside = image != Nearest::none;
    for (int d = 0; d < D && image == Nearest::some; ++d)
      inside = inside && std::fabs(centre[d] - box.middle[d]) < half[d];
    return inside ? length2 : 0;
  }

  // The error of a partly softened node, and whether the sum of such errors is small.
  JZTREE_BOTH double error(const GravityNode<D>& node) const {
    const double shortest = shortest_half();
    return node.size * length2 / (2 * shortest * shortest * shortest);
  }
  template <bool Accelerate>
  JZTREE_BOTH bool may_make(double errors, double potential, double acceleration) const {
    return 4 * errors <= potential && (!Accelerate || 12 * errors <= acceleration * shortest_half());
  }

 private:
  JZTREE_BOTH double shortest_half() const {
    double shortest = half[0];
    for (int d = 1; d < D; ++d) shortest = std::min(shortest, half[d]);
    return shortest;
  }
};

// A source in `Real`: a place; the mass; the squared softening.
constexpr int row_numbers(int dims) { return dims + 2; }

// Add the sums of m / r, the last of `sums`, and of m (x' - x) / r^3.
template <bool Accelerate, int D, typename V, typename Real>
JZTREE_BOTH inline void add_row_field(const Real* row, const V* x, V* sums) {
  V away[D], r2(row[D + 1]);
  for (int d = 0; d < D; ++d) {
    away[d] = V(row[d]) - x[d];
    r2 = r2 + away[d] * away[d];
  }
  const V inverse = inverse_of_root(r2), potential = inverse * row[D];
  sums[D] = sums[D] + potential;
  if (!Accelerate) return;
  const V force = potential * (inverse * inverse);
  for (int d = 0; d < D; ++d) sums[d] = sums[d] + away[d] * force;
}

// A node in `Real`: its centre; the mass; half the trace of the second moments; the second moments, times 1.5 and off
// the diagonal 3; the lever; the squared softening.
constexpr int node_numbers(int dims) { return 2 * dims + 3 + dims * (dims + 1) / 2; }

template <int D, typename Real>
JZTREE_BOTH inline void pack_node(const double* centre, const NodeMoments<D>& moments, const double* middle,
                                  double length2, Real* node) {
  constexpr int pairs = Pairs<D>::with_self;
  double trace = 0;
  for (int d = 0; d < D; ++d) {
    node[d] = static_cast<Real>(centre[d] - middle[d]);
    node[D + 2 + pairs + d] = static_cast<Real>(moments.lever[d]);
  }
  node[D] = static_cast<Real>(moments.mass);
  Pairs<D>::visit_with_self([&](int pair, int i, int j) {
    node[D + 2 + pair] = static_cast<Real>((i == j ? 1.5 : 3) * moments.inertia[pair]);
    trace += i == j ? moments.inertia[pair] : 0;
  });
  node[D + 1] = static_cast<Real>(trace / 2);
  node[2 * D + 2 + pairs] = static_cast<Real>(length2);
}

// With u the way to the node over the distance rho, the potential is the mass over rho, plus lever and inertia:
// -p u / rho^2 + (3 u S u - trace S) / (2 rho^3). In float32, S times the squared distance may be too small a number.
template <bool Accelerate, bool Lever, int D, typename V, typename Real>
JZTREE_BOTH inline void add_node_field(const Real* node, const V* x, V* sums) {
  const Real *mass = node + D, *trace = mass + 1, *inertia = mass + 2, *lever = inertia + Pairs<D>::with_self;
  V way[D], tensed[D], r2(lever[D]), along{}, dipole{};
  for (int d = 0; d < D; ++d) {
    way[d] = V(node[d]) - x[d];
    r2 = r2 + way[d] * way[d];
  }
  const V inverse = inverse_of_root(r2), inverse2 = inverse * inverse;
  for (int d = 0; d < D; ++d) way[d] = way[d] * inverse;
  // tensed: the gradient of half of `along`, 1.5 u S u.
  for (int d = 0; d < D; ++d) tensed[d] = V{};
  Pairs<D>::visit_with_self([&](int pair, int j, int k) {
    if (Accelerate) {
      const Real weight = j == k ? inertia[pair] : inertia[pair] / 2;
      tensed[j] = tensed[j] + way[k] * weight;
      if (j != k) tensed[k] = tensed[k] + way[j] * weight;
    } else {
      tensed[j] = tensed[j] + way[k] * inertia[pair];
    }
  });
  for (int d = 0; d < D; ++d) along = along + way[d] * tensed[d];
  V inner = (along - V(*trace)) * inverse2 + V(*mass);
  if (Lever) {
    for (int d = 0; d < D; ++d) dipole = dipole + way[d] * lever[d];
    inner = inner - dipole * inverse;
  }
  sums[D] = sums[D] + inner * inverse;
  if (!Accelerate) return;
  // Minus the gradient of the potential by the way to the node.
  V radial = V(*mass) + (along * Real{5} - V(*trace) * Real{3}) * inverse2;
  if (Lever) radial = radial - dipole * Real{3} * inverse;
  for (int d = 0; d < D; ++d) {
    V across = tensed[d] * Real{2} * inverse2;
    if (Lever) across = across - inverse * lever[d];
    sums[d] = sums[d] + (radial * way[d] - across) * inverse2;
  }
}

}  // namespace jztree
