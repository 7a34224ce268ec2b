// The particles in a shell around a centre, by a walk from the top plane, on one thread.
#pragma once

#include <cstdint>

#include "common/tree_arguments.h"
#include "spheres.h"

namespace jztree {

template <int D, typename T>
class SphereWalk {
 public:
  explicit SphereWalk(const Tree<D, T>& tree)
      : arrays_(tree), num_(tree.num()), planes_(tree.layout.planes()), starts_(tree.layout.starts.data()) {}

  int64_t num() const { return num_; }

  // Call visit(row, squared distance), in the order of rows, for the particles outside the inner radius, if it is not
  // negative, and within the outer radius.
  template <typename Visit>
  void rows(const Centre<D, T>& centre, double inner, double outer, const Visit& visit) const {
    int top = planes_ - 1;
    Shell shell{inner, outer, inner >= 0 ? inner * inner : -1, outer * outer, centre.gap2_within(outer)};
    open(centre, shell, top, starts_[top], starts_[top + 1], visit);
  }

 private:
  struct Shell {
    double inner, outer, inner2, outer2, most;  // most: largest squared gap to nodes
  };

  int64_t first_row(int plane, int64_t node) const { return arrays_.particle_splits[node + plane]; }
  int64_t first_child(int plane, int64_t node) const { return starts_[plane - 1] + arrays_.splits[node + plane]; }

  // Test nodes [begin, end) of a plane.
  template <typename Visit>
  void open(const Centre<D, T>& centre, const Shell& shell, int plane, int64_t begin, int64_t end,
            const Visit& visit) const {
    for (int64_t node = begin; node < end; ++node) {
      const T *lower = arrays_.lower + node * D, *upper = arrays_.upper + node * D;
      int64_t first = first_row(plane, node), last = first_row(plane, node + 1);
      if (first == last || centre.gap2(lower, upper) > shell.most || centre.reach(lower, upper) < shell.inner) continue;
      if (plane > 0) {
        open(centre, shell, plane - 1, first_child(plane, node), first_child(plane, node + 1), visit);
        continue;
      }
      for (int64_t row = first; row < last; ++row) {
        double distance2 = centre.distance2(arrays_.pos + row * D);
        if (distance2 > shell.inner2 && distance2 <= shell.outer2) visit(row, distance2);
      }
    }
  }

  const Tree<D, T>& arrays_;
  int64_t num_;
  int planes_;
  const int64_t* starts_;
};

}  // namespace jztree
