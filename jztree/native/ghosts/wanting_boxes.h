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
  WantingBoxes(const double* period, int64_t most)
      : stride_((most + lanes - 1) / lanes * lanes), numbers_((2 * D + 1) * stride_) {
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
      const uint32_t there = others.count_ - i < lanes ? (1u << (others.count_ - i)) - 1 : (1u << lanes) - 1;
      for (uint32_t near = lanes_at_most(gap2, far2) & there; near != 0; near &= near - 1)
        take(others, i + __builtin_ctz(near));
      one_wants_all_ |= (lanes_at_most(widest2, far2) & there) != 0;
    }
  }

  // The wanted ones among up to `lanes` points, one bit per point. x: lane by lane, for each dimension.
  uint32_t wanted(const Lanes<double>* x, uint32_t points) const {
    uint32_t found = 0;
    for (int64_t i = 0; i < count_ && found != points; ++i) {
      V gap2{};
      for (int d = 0; d < D; ++d) {
        const V gap = interval_gap<V>(x[d], x[d], V(corner(2 * d)[i]), V(corner(2 * d + 1)[i]), V(period_[d]));
        gap2 = gap2 + gap * gap;
      }
      found |= lanes_at_most(gap2, V(far2()[i])) & points;
    }
    return found;
  }

 private:
  using V = Lanes<double>;

  // The boxes' lower corners, dimension by dimension, then their upper corners, then their squared search distances.
  double* corner(int which) { return numbers_.get() + which * stride_; }
  const double* corner(int which) const { return numbers_.get() + which * stride_; }
  double* far2() { return corner(2 * D); }
  const double* far2() const { return corner(2 * D); }

  void clear() {
    count_ = 0;
    one_wants_all_ = false;
  }

  void take(const WantingBoxes& others, int64_t i) {
    for (int which = 0; which <= 2 * D; ++which) corner(which)[count_] = others.corner(which)[i];
    ++count_;
  }

  double period_[D];
  int64_t stride_, count_ = 0;
  bool one_wants_all_ = false;
  Scratch<double> numbers_;
};

}  // namespace jztree
