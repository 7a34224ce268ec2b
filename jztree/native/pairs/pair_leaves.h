// Two leaves whose particles form pairs: copies of their coordinates in float32, moved so that plain differences are
// those of the nearest images if one choice is enough for all pairs. With an axis as the line of sight, it is the last
// dimension.
//
// Float64 coordinates are first measured from the middle of both leaves and divided by a power of two near their
// extent. So float32 resolves a small part of the extent, and only pairs very close to an edge need float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "common/cpu/staged_tree.h"
#include "pair_bins.h"
#include "pair_sight.h"

namespace jztree {

// Add the terms of dimension d.
template <PairMode Mode, int D, typename V>
inline void add_dimension(int d, bool to_middle, const V& gap, const V& reach, V (&sums)[2], V (&along)[2]) {
  if (Mode != PairMode::across_along || d < D - 1 || to_middle) {
    sums[0] = sums[0] + gap * gap;
    sums[1] = sums[1] + reach * reach;
  }
  if (Mode != PairMode::distance && d == D - 1) along[0] = gap, along[1] = reach;
}

template <PairMode Mode, typename T>
inline void store_bounds(const Lanes<T> (&sums)[2], const Lanes<T> (&along)[2], PairBounds<T>& out) {
  store<T>(sums[0] * below_one<T>, out.gap);
  store<T>(sums[1] * above_one<T>, out.reach);
  if (Mode == PairMode::distance) return;
  store<T>(along[0] * below_one<T>, out.gap_along);
  store<T>(along[1] * above_one<T>, out.reach_along);
}

// How the quantities of pairs are computed: from plain differences; to the nearest image of each pair; or with a
// separate line of sight for each pair.
enum class Quantities { plain, pairwise, sighted };

template <PairMode Mode, int D, typename T>
class PairLeaves {
 public:
  using V = Lanes<float>;

  PairLeaves(const Scale<D, T>& scale, double rounding, bool to_middle, int64_t max_leaf)
      : scale_(scale), given_rounding_(rounding), to_middle_(to_middle), rounding_(rounding) {
    size_t space = static_cast<size_t>((max_leaf + lanes) / lanes * lanes + lanes);
    for (int d = 0; d < D; ++d) a_[d].resize(space), b_[d].resize(space);
    for (int d = 0; d < D; ++d) block_low_[d].resize(space / lanes + lanes), block_high_[d] = block_low_[d];
  }

  int64_t count_a() const { return count_a_; }
  int64_t count_b() const { return count_b_; }
  Quantities quantities() const {
    return to_middle_ ? Quantities::sighted : pairwise_ ? Quantities::pairwise : Quantities::plain;
  }
  // The factor from staged lengths to those of the copies, and the error of the latter.
  double factor() const { return factor_; }
  double rounding() const { return rounding_; }
  // The error of the direction of the lines of sight. If it is infinite, the quantities have no meaning.
  float angle() const { return angle_; }

  void set(const StagedTree<D, T>& one, int64_t leaf_a, const StagedTree<D, T>& other, int64_t leaf_b) {
    int64_t first_a = one.leaf_row(leaf_a), first_b = other.leaf_row(leaf_b);
    count_a_ = one.leaf_row(leaf_a + 1) - first_a;
    count_b_ = other.leaf_row(leaf_b + 1) - first_b;
    Interval a[D], b[D];
    for (int d = 0; d < D; ++d) {
      a[d] = {one.low[d][leaf_a], one.high[d][leaf_a]};
      b[d] = {other.low[d][leaf_b], other.high[d][leaf_b]};
    }
    pairwise_ = false;
    if (scale_.periodic) choose_images(a, b);
    if constexpr (wide) choose_frame(a, b);
    for (int d = 0; d < D; ++d) {
      copy(one.x[d] + first_a, count_a_, d, a[d].shifted, a_[d].data());
      copy(other.x[d] + first_b, count_b_, d, b[d].shifted, b_[d].data());
      pad(b_[d], count_b_);
      low_[d] = placed(b[d].low, d), high_[d] = placed(b[d].high, d);
      if (pairwise_) set_period(d);
    }
    if (to_middle_) note_lines_of_sight(a, b);
  }

  // Prepare the squares of plain differences and the edges from `lo` to before `hi`; see PairWords::set.
  template <typename Words>
  bool prepare(Words& words, const EdgeBounds<float>& edges, int64_t lo, int64_t hi) const {
    const float *a[D], *b[D];
    float middle[D];
    for (int d = 0; d < D; ++d) {
      a[d] = a_[d].data(), b[d] = b_[d].data();
      middle[d] = (a[d][count_a_ / 2] + (low_[d] + high_[d]) / 2) / 2;
    }
    return words.set(a, count_a_, b, count_b_, middle, edges.surely + lo, edges.possibly + lo,
                     static_cast<int>(hi - lo));
  }

  // Let `bounds` be those to `lanes` particles of the second leaf, starting at `begin`, until the next call of `set`.
  void aim_at_block(int64_t begin) {
    for (int d = 0; d < D; ++d) set_interval(b_[d].data() + begin, low_[d], high_[d]);
  }

  // Find the boxes of the blocks of `lanes` particles of the first leaf.
  void set_blocks() {
    for (int d = 0; d < D; ++d) {
      pad(a_[d], count_a_);
      for (int64_t begin = 0; begin < count_a_; begin += lanes)
        set_interval(a_[d].data() + begin, block_low_[d].data()[begin / lanes], block_high_[d].data()[begin / lanes]);
    }
  }

  // For `lanes` particles of the first leaf, starting at `begin`, to all particles of the second. Blocks: for `lanes`
  // blocks of the first leaf, each a box.
  template <Quantities How, bool Blocks = false>
  __attribute__((flatten)) void bounds(int64_t begin, float farthest_along, PairBounds<float>& out) const {
    static_assert(!Blocks || How != Quantities::sighted);
    V sums[2]{}, along[2]{};
    SightedBoxes<D, V> boxes{};
    for (int d = 0; d < D; ++d) {
      V x, x_high, gap, low(low_[d]), high(high_[d]);
      load((Blocks ? block_low_ : a_)[d].data() + begin, x);
      load((Blocks ? block_high_ : a_)[d].data() + begin, x_high);
      V reach = larger<V>(high - x, x_high - low);
      if (How == Quantities::pairwise) {
        gap = interval_gap<V>(x, x_high, low, high, V(period_[d] * below_one<float>));
        reach = smaller<V>(reach, V(period_[d] / 2));
      } else {
        gap = larger<V>(larger<V>(low - x_high, x - high), V{});
      }
      add_dimension<Mode, D, V>(d, How == Quantities::sighted, gap, reach, sums, along);
      if (How != Quantities::sighted) continue;
      const float middle = (low_[d] + high_[d]) / 2, half = (high_[d] - low_[d]) / 2;
      boxes.apart[d] = x - V(middle);
      boxes.sum[d] = (x + V(middle)) + V(both_centres_[d]);
      boxes.radius2 = boxes.radius2 + V(half * half);
    }
    if constexpr (Mode != PairMode::distance && How == Quantities::sighted)
      bound_sighted<Mode, D, float>(boxes, farthest_along, sums, along);
    store_bounds<Mode, float>(sums, along, out);
  }

  // A particle of the first leaf, and pointers to the coordinates of the second leaf. Loops use a local copy, so that
  // the compiler knows that no write to memory changes it.
  struct Row {
    V at[D], period[D], rest[D];
    const float* b[D];

    // To `lanes` particles of the second leaf, starting at `begin`: the first quantity, and the distance along the line
    // of sight. Infinite for padding.
    template <Quantities How>
    void quantities(int64_t begin, V& first, V& along) const {
      V x[D];
      for (int d = 0; d < D; ++d) load(b[d] + begin, x[d]);
      find_quantities<How>(at, x, period, rest, first, along);
    }

    // The squared distances, of plain differences.
    void distances(int64_t begin, V& distance2) const {
      distance2 = V{};
      for (int d = 0; d < D; ++d) {
        V x;
        load(b[d] + begin, x);
        distance2 = distance2 + (at[d] - x) * (at[d] - x);
      }
    }
  };

  template <Quantities How>
  Row row(int64_t i) const {
    Row found;
    for (int d = 0; d < D; ++d) {
      found.at[d] = V(a_[d][static_cast<size_t>(i)]);
      found.b[d] = b_[d].data();
      load_period<How>(d, found.period[d], found.rest[d]);
    }
    return found;
  }

  // The other way round: `lanes` particles of the second leaf, and the coordinates of the first leaf.
  struct Block {
    V x[D], period[D], rest[D];
    const float* a[D];

    // The same from the i-th particle of the first leaf.
    template <Quantities How>
    void quantities(int64_t i, V& first, V& along) const {
      V at[D];
      for (int d = 0; d < D; ++d) at[d] = V(a[d][i]);
      find_quantities<How>(at, x, period, rest, first, along);
    }
  };

  template <Quantities How>
  Block block(int64_t begin) const {
    Block found;
#pragma GCC unroll 8
    for (int d = 0; d < D; ++d) {
      load(b_[d].data() + begin, found.x[d]);
      found.a[d] = a_[d].data();
      load_period<How>(d, found.period[d], found.rest[d]);
    }
    return found;
  }

 private:
  static constexpr bool wide = std::is_same<T, double>::value;
  // Differences of numbers up to 1, each rounded once when it is converted.
  static constexpr double local_rounding = 4 * std::numeric_limits<float>::epsilon();

  struct Interval {
    T low, high;
    bool shifted = false;

    void shift_down(T period, T period_rest) {
      shifted = true;
      low = shifted_down(low, period, period_rest);
      high = shifted_down(high, period, period_rest);
    }
  };

  // Padding is infinitely far away.
  static void pad(std::vector<float>& x, int64_t count) {
    std::fill(x.data() + count, x.data() + (count + lanes - 1) / lanes * lanes, std::numeric_limits<float>::infinity());
  }
  // The interval of `lanes` particles, without padding.
  static void set_interval(const float* from, float& low, float& high) {
    const V infinity(std::numeric_limits<float>::infinity());
    V x;
    load(from, x);
    low = least_lane(x);
    high = -least_lane(choose(x < infinity, -x, infinity));
  }

  void choose_images(Interval (&a)[D], Interval (&b)[D]) {
    Image image[D];
    bool one_for_all = true;
    for (int d = 0; d < D; ++d) {
      image[d] = nearest_image(a[d].low, a[d].high, b[d].low, b[d].high, scale_.period[d]);
      one_for_all &= image[d] != Image::depends;
    }
    pairwise_ = !one_for_all;
    if (pairwise_) return;
    for (int d = 0; d < D; ++d) {
      if (image[d] == Image::shift_query) a[d].shift_down(scale_.period[d], scale_.period_rest[d]);
      if (image[d] == Image::shift_source) b[d].shift_down(scale_.period[d], scale_.period_rest[d]);
    }
  }

  // The nearest images of each pair need coordinates that start at 0.
  void choose_frame(const Interval (&a)[D], const Interval (&b)[D]) {
    double extent = 0;
    for (int d = 0; d < D; ++d) {
      const bool in_box = pairwise_ && scale_.raw_period[d] > 0;
      const double low = std::min(a[d].low, b[d].low), high = std::max(a[d].high, b[d].high);
      centre_[d] = in_box ? 0 : low / 2 + high / 2;
      extent = std::max(extent, in_box ? scale_.period[d] : high - centre_[d]);
    }
    // A larger factor would overflow, and the rounding covers what a smaller one loses.
    constexpr int largest = 150;
    // A wrapped position may be slightly outside the box of its leaf.
    extent += given_rounding_;
    int exponent = 0;
    if (extent > 0) std::frexp(extent, &exponent);
    factor_ = std::ldexp(1., std::min(-exponent, largest));
    rounding_ = local_rounding + given_rounding_ * factor_;
  }

  void set_period(int d) {
    const double period = scale_.period[d] * factor_;
    period_[d] = static_cast<float>(period);
    period_rest_[d] = static_cast<float>(scale_.period_rest[d] * factor_);
    if (wide && std::isfinite(period)) period_rest_[d] += static_cast<float>(period - static_cast<double>(period_[d]));
  }

  float placed(T x, int d) const {
    if constexpr (wide) {
      return static_cast<float>((x - centre_[d]) * factor_);
    } else {
      return x;
    }
  }

  void copy(const T* from, int64_t count, int d, bool shifted, float* to) const {
    const T period = scale_.period[d], rest = scale_.period_rest[d];
    if constexpr (!wide)
      if (!shifted) {
        std::copy_n(from, count, to);
        return;
      }
    if (shifted) {
      for (int64_t i = 0; i < count; ++i) to[i] = placed(shifted_down(from[i], period, rest), d);
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = placed(from[i], d);
    }
  }

  // Find the error of the direction to the middle of a pair.
  void note_lines_of_sight(const Interval (&a)[D], const Interval (&b)[D]) {
    constexpr float epsilon = std::numeric_limits<float>::epsilon();
    double nearest2 = 0, largest = 0;
    for (int d = 0; d < D; ++d) {
      const double low = static_cast<double>(a[d].low) + static_cast<double>(b[d].low);
      const double high = static_cast<double>(a[d].high) + static_cast<double>(b[d].high);
      const double gap = std::max({low, -high, 0.}) * factor_;
      nearest2 += gap * gap;
      largest = std::max({largest, std::fabs(low) * factor_, std::fabs(high) * factor_});
      both_centres_[d] = static_cast<float>(2 * centre_[d] * factor_);
    }
    const double angle = 12 * epsilon + (4 * rounding_ + (wide ? 16 * epsilon : 0)) / std::sqrt(nearest2);
    const bool resolved = nearest2 > 0x1p-60 && largest < 0x1p60 && angle < 0x1p-10;
    angle_ = resolved ? static_cast<float>(angle) : std::numeric_limits<float>::infinity();
  }

  template <Quantities How>
  void load_period(int d, V& period, V& rest) const {
    if (How == Quantities::pairwise) period = V(period_[d]), rest = V(period_rest_[d]);
    if (How == Quantities::sighted) period = V(both_centres_[d]);
  }

  // period: of the box, or with separate lines of sight the sum of both centres.
  // The last bits may depend on the instruction set.
  template <Quantities How>
  static void find_quantities(const V (&at)[D], const V (&x)[D], const V (&period)[D], const V (&rest)[D], V& first,
                              V& along) {
    first = V{};
    V sum2{}, dot{};
    for (int d = 0; d < D; ++d) {
      V difference = at[d] - x[d];
      if (How == Quantities::pairwise) difference = wrapped_difference<V>(at[d], x[d], period[d], rest[d]);
      if (How == Quantities::sighted) {
        const V sum = (at[d] + x[d]) + period[d];
        sum2 = sum2 + sum * sum;
        dot = dot + sum * difference;
      }
      if (Mode != PairMode::across_along || d < D - 1 || How == Quantities::sighted)
        first = d > 0 ? sum_of_product(difference, difference, first) : difference * difference;
      if (Mode != PairMode::distance && d == D - 1) along = magnitude(difference);
    }
    if (Mode == PairMode::distance || How != Quantities::sighted) return;
    if (Mode == PairMode::distance_cosine) {
      along = magnitude(dot) * inverse_root(sum2);
    } else {
      along = magnitude(dot) / square_root(sum2);
      first = maximum(first - along * along, V{});
    }
  }

  const Scale<D, T>& scale_;
  const double given_rounding_;  // of staged lengths
  const bool to_middle_;
  std::vector<float> a_[D], b_[D];
  std::vector<float> block_low_[D], block_high_[D];  // of the first leaf
  // Of the current leaves.
  int64_t count_a_ = 0, count_b_ = 0;
  bool pairwise_ = false;
  double centre_[D] = {}, factor_ = 1, rounding_ = 0;
  float low_[D], high_[D];  // of the second leaf
  float period_[D], period_rest_[D];
  float both_centres_[D] = {}, angle_ = 0;
};

}  // namespace jztree
