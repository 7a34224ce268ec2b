// Boxes that want all points within some distance, for the CPU kernels: in float64 and in vector loops.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cpu/lanes.h"
#include "common/cpu/memory.h"
#include "common/geometry.h"

namespace jztree {

template <int D>
class WantingBoxes {
 public:
  // period: infinite for open dimensions. most: the largest number of boxes.
  WantingBoxes(const double* period, int64_t capacity)
      : stride_((capacity + lanes - 1) / lanes * lanes), numbers_((2 * D + 1) * stride_) {
    std::copy(period, period + D, period_);
  }

  bool empty() const { return count_ == 0; }

  // Whether one of the boxes added last wants every point of a box.
  bool one_wants_all() const { return one_wants_all_; }

  // Add a box that wants all points within `far`.
  template <typename T>
  void add(const T* low, const T* high, double far) {
    for (int d = 0; d < D; ++d) {
      corner(2 * d)[count_] = low[d];
      corner(2 * d + 1)[count_] = high[d];
    }
    far2()[count_++] = far * far;
  }

  // Replace the boxes by those of `others` that want any point of [low, high].
  template <typename T>
  void choose_near(const T* low, const T* high, const WantingBoxes& others) {
    clear();
    for (int64_t i = 0; i < others.count_; i += lanes) {
      V gap2{}, widest2{}, far2;
      for (int d = 0; d < D; ++d) {
        V other_low, other_high;
        load(others.corner(2 * d) + i, other_low);
        load(others.corner(2 * d + 1) + i, other_high);
        const V here_low(low[d]), here_high(high[d]), period(period_[d]);
        const V gap = interval_gap<V>(here_low, here_high, other_low, other_high, period);
        const V widest = widest_gap<V>(here_low, here_high, other_low, other_high, period);
        gap2 = gap2 + gap * gap;
        widest2 = widest2 + widest * widest;
      }
      load(others.far2() + i, far2);
      const uint32_t used_lanes = others.count_ - i < lanes ? (1u << (others.count_ - i)) - 1 : (1u << lanes) - 1;
      for (uint32_t reaching = lanes_at_most(gap2, far2) & used_lanes; reaching != 0; reaching &= reaching - 1)
        take(others, i + __builtin_ctz(reaching));
      one_wants_all_ |= (lanes_at_most(widest2, far2) & used_lanes) != 0;
    }
  }

  // The wanted ones among up to `lanes` points, one bit per point. x: lane by lane, for each dimension.
  uint32_t wanted(const Lanes<double>* x, uint32_t points) const {
    uint32_t wanted_points = 0;
    for (int64_t i = 0; i < count_ && wanted_points != points; ++i) {
      V gap2{};
      for (int d = 0; d < D; ++d) {
        const V gap = interval_gap<V>(x[d], x[d], V(corner(2 * d)[i]), V(corner(2 * d + 1)[i]), V(period_[d]));
        gap2 = gap2 + gap * gap;
      }
      wanted_points |= lanes_at_most(gap2, V(far2()[i])) & points;
    }
    return wanted_points;
  }

 private:
  using V = Lanes<double>;

  // The boxes' lower corners, dimension by dimension, then their upper corners, then their squared search distances.
  double* corner(int column) { return numbers_.get() + column * stride_; }
  const double* corner(int column) const { return numbers_.get() + column * stride_; }
  double* far2() { return corner(2 * D); }
  const double* far2() const { return corner(2 * D); }

  void clear() {
    count_ = 0;
    one_wants_all_ = false;
  }

  void take(const WantingBoxes& others, int64_t i) {
    for (int column = 0; column <= 2 * D; ++column) corner(column)[count_] = others.corner(column)[i];
    ++count_;
  }

  double period_[D];
  int64_t stride_, count_ = 0;
  bool one_wants_all_ = false;
  Scratch<double> numbers_;
};

}  // namespace jztree
