// The edges of bins in the coordinates of two leaves (pair_leaves.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "pair_bins.h"
#include "pair_leaves.h"
#include "pair_problem.h"

namespace jztree {

// Edges that are evenly spaced, up to rounding.
template <typename N>
struct EvenEdges {
  N start = 0, per_step = 0;
  // Steps: a value farther than this times (1 + its place) from an edge is surely on its apparent side.
  float tolerance = 0;
  float min_steps = -0.5f;  // steps; every edge is above this
  float max_steps = 0;      // steps; all edges are below this
  bool is_even = false;

  EvenEdges() = default;

  // rounding: the relative error of values and bounds.
  template <typename T>
  EvenEdges(const EdgeTable<T, EqualCells>& edges, double rounding) {
    // An edge that contains no pairs is stored as 0. An edge that contains every pair is left out.
    const int64_t zero = edges.count > 0 && edges.possibly[0] < 0;
    int64_t last = edges.count - 1;
    if (last >= 0 && !(edges.possibly[static_cast<size_t>(last)] < std::numeric_limits<T>::max())) --last;
    if (last <= 0) return;
    auto middle = [&](int64_t i) {
      size_t index = static_cast<size_t>(i);
      return i < zero ? 0.
                      : (static_cast<double>(edges.surely[index]) + static_cast<double>(edges.possibly[index])) / 2;
    };
    start = middle(0);
    per_step = static_cast<double>(last) / (middle(last) - start);
    double worst = 0;
    for (int64_t i = zero; i <= last; ++i)
      for (T bound : {edges.surely[static_cast<size_t>(i)], edges.possibly[static_cast<size_t>(i)]})
        worst = std::max(worst, error(static_cast<double>(bound), static_cast<double>(i), rounding));
    if (zero) min_steps = 0.5f;
    max_steps = static_cast<float>(edges.count - 1) + 0.5f;
    if (last < edges.count - 1) max_steps -= 1;
    // A little larger, because it is multiplied by places instead of edge numbers.
    tolerance = static_cast<float>(1.25 * worst);
    is_even = worst * static_cast<double>(edges.count) < 0.125;
  }

  // The same edges for values that are multiplied by a power of two.
  EvenEdges<float> scaled(double factor) const {
    EvenEdges<float> out;
    out.start = static_cast<float>(start * factor);
    out.per_step = static_cast<float>(per_step / factor);
    out.tolerance = tolerance, out.min_steps = min_steps, out.max_steps = max_steps;
    out.is_even = is_even && std::isnormal(out.per_step) && std::isfinite(out.start);
    return out;
  }

 private:
  // The largest apparent distance of a bound from the edge number `place`, in steps, divided by 1 + place.
  double error(double bound, double place, double rounding) const {
    const double from = start * per_step;
    const double off = std::fabs((bound - start) * per_step - place);
    return (off + rounding * (place + 1 + std::fabs(from))) / (place + 1);
  }
};

// The bounds of edges for float64 positions, one more than there are edges.
struct LocalEdges {
  std::vector<float> surely, possibly;

  explicit LocalEdges(size_t edges)
      : surely(edges + 1 + lanes, std::numeric_limits<float>::infinity()), possibly(surely) {}

  EdgeBounds<float> bounds() const {
    return {static_cast<int64_t>(surely.size()) - 1 - lanes, surely.data(), possibly.data()};
  }
  // Edges of lengths, with an error of `rounding`.
  void set_length(int64_t edge, double length, double rounding) {
    set(edge, length * (1 - tolerance) - rounding, length * (1 + tolerance) + rounding);
  }
  // Edges of squared lengths.
  void set_square(int64_t edge, double length, double rounding) {
    const double low = std::max(0., length * (1 - tolerance) - rounding), high = length * (1 + tolerance) + rounding;
    // Each square that underflows is off by less than the smallest normal number.
    constexpr double vanishing = 8 * std::numeric_limits<float>::min();
    set(edge, low * low - vanishing, high * high + vanishing);
  }
  void set(int64_t edge, double low, double high) {
    // Only padding is infinitely far away.
    constexpr double largest = 0x1p127;
    surely[static_cast<size_t>(edge)] = static_cast<float>(std::min(low, largest));
    possibly[static_cast<size_t>(edge)] = static_cast<float>(std::min(high, largest));
  }

  static constexpr double tolerance = 32 * static_cast<double>(std::numeric_limits<float>::epsilon());
};

template <PairMode Mode, int D, typename T>
class LeafEdges {
 public:
  explicit LeafEdges(const PairProblem<D, T>& problem)
      : problem_(problem),
        all_even_(problem.second, (wide ? 32 : 8) * static_cast<double>(epsilon)),
        even_(all_even_.scaled(1)),
        first_(wide ? problem.first.exact.size() : 0),
        second_(wide ? problem.second.exact.size() : 0) {
    if (wide && Mode == PairMode::distance_cosine) set_cosines();
  }

  // Find the edges that pairs of the leaves may be near, and the errors of the quantities.
  void set(const PairLeaves<Mode, D, T>& leaves, const Bins& possible) {
    if constexpr (wide) set_lengths(leaves, possible);
    const bool to_middle = problem_.rule.to_middle();
    const float rounding = static_cast<float>(leaves.rounding());
    errors_ = {};
    if (wide || to_middle || Mode == PairMode::distance_cosine) errors_.along = 8 * rounding;
    if (!to_middle) return;
    // If coordinates are rounded, they are at most 1.
    const float longest = wide ? 4 : std::sqrt(limits().farthest2()) * (1 + 8 * epsilon);
    errors_.angle = leaves.angle();
    if (Mode != PairMode::across_along) return;
    errors_.along += errors_.angle * longest;
    errors_.per_distance2 = 16 * epsilon + 4 * errors_.angle;
    errors_.across2 = 8 * longest * rounding;
  }

  PairBins<Mode, float> limits() const {
    return {first(), second(), problem_.first.exact[0] == 0, problem_.rule.to_middle(), errors_};
  }
  EdgeBounds<float> first() const {
    if constexpr (wide) {
      return first_.bounds();
    } else {
      return problem_.first.bounds();
    }
  }
  EdgeBounds<float> second() const {
    if constexpr (wide) {
      return second_.bounds();
    } else {
      return problem_.second.bounds();
    }
  }
  const EvenEdges<float>& even() const { return even_; }
  const PairErrors<float>& errors() const { return errors_; }

 private:
  static constexpr bool wide = std::is_same<T, double>::value;
  static constexpr float epsilon = std::numeric_limits<float>::epsilon();

  void set_lengths(const PairLeaves<Mode, D, T>& leaves, const Bins& possible) {
    const double scale = problem_.rule.distances.scale, factor = leaves.factor(), rounding = leaves.rounding();
    auto set_squares = [&](int64_t begin, int64_t end) {
      for (int64_t edge = begin; edge < end; ++edge)
        first_.set_square(edge, problem_.first.exact[static_cast<size_t>(edge)] * scale * factor, rounding);
    };
    // The edges on both sides bound the quantities.
    if (possible.hi - possible.lo <= few_edges)
      set_squares(std::max<int64_t>(possible.lo - 1, 0), std::min(possible.hi + 1, problem_.first.count));
    set_squares(problem_.first.count - 1, problem_.first.count);
    if (Mode != PairMode::across_along) return;
    even_ = all_even_.scaled(leaves.factor());
    auto set_along = [&](int64_t begin, int64_t end) {
      for (int64_t edge = begin; edge < end; ++edge) {
        const double exact = problem_.second.exact[static_cast<size_t>(edge)];
        exact < 0 ? second_.set(edge, -1, -1) : second_.set_length(edge, exact * scale * factor, rounding);
      }
    };
    if (possible.is_short() || (!even_.is_even && possible.hi_b - possible.lo_b <= few_edges))
      set_along(possible.lo_b, possible.hi_b);
    set_along(problem_.second.count - 1, problem_.second.count);
  }

  // The exact edges are squares of cosines.
  void set_cosines() {
    for (int64_t edge = 0; edge < problem_.second.count; ++edge) {
      const double exact = problem_.second.exact[static_cast<size_t>(edge)];
      exact < 0 ? second_.set(edge, -1, -1) : second_.set_length(edge, std::sqrt(exact), 0);
    }
  }

  const PairProblem<D, T>& problem_;
  const EvenEdges<double> all_even_;
  EvenEdges<float> even_;
  LocalEdges first_, second_;
  PairErrors<float> errors_;
};

}  // namespace jztree
