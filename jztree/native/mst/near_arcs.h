// The arcs of enclosure.h in vector loops.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/cpu/lanes.h"
#include "edge_rule.h"
#include "spanning_tree.h"

namespace jztree {

class NearArcs {
 public:
  static constexpr int64_t capacity = lanes;

  // Add the arc of a near particle, if there are fewer than `capacity`.
  void add(const NearOffset& offset) {
    if (count_ == capacity || !offset.has_arc()) return;
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

// Whether the near particles of a row enclose it. last: the weight of the distance to the last one.
template <typename T>
inline bool is_enclosed(const EdgeRule<2, T>& rule, const EdgeParticles<2, T>& particles, int64_t row,
                        const int32_t* neighbours, int64_t k, double last) {
  NearArcs arcs;
  const double unit = 1 / std::sqrt(last);
  for (int64_t i = 0; i + 1 < k; ++i) arcs.add(rule.offset(particles.place(row), particles.place(neighbours[i]), unit));
  return arcs.enclose();
}

}  // namespace jztree
