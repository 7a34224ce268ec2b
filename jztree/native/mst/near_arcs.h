// The arcs of enclosure.h in vector loops.
#pragma once

#include <cstdint>

#include "common/cpu/lanes.h"
#include "enclosure.h"

namespace jztree {

class NearArcs {
 public:
  static constexpr int64_t most = lanes;

  // Add the arc of a near particle, if there are fewer than `most`.
  void add(const NearOffset& offset) {
    if (count_ == most || !offset.has_arc()) return;
    x_[count_] = offset.x;
    y_[count_] = offset.y;
    ++count_;
  }

  // See arcs_enclose.
  bool enclose() const {
    Lanes<float> x, y;
    load(x_, x);
    load(y_, y);
    const Lanes<float> inside = (x * x + y * y) * 0.5f + Lanes<float>(enclosure_margin);
    for (int64_t i = 0; i < count_; ++i) {
      const NearOffset end = NearOffset{x_[i], y_[i]}.arc_end();
      if (lanes_at_most(inside, x * end.x + y * end.y) == 0) return false;
    }
    return count_ > 0;
  }

 private:
  float x_[lanes] = {}, y_[lanes] = {};
  int64_t count_ = 0;
};

}  // namespace jztree
