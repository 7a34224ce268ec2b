// The order of particles by group: first the listed groups (those with at least npart_min particles), one after the
// other in the order of their first rows; then all other rows. Within a group, and among the other rows, rows keep
// their order.
#pragma once

#include "common/arguments.h"

namespace jztree {

struct GroupOrder {
  Array<const int32_t> label;  // (n,), the first row of each row's group
  Count num;
  int32_t* order;  // (n,)
  int32_t* ngroups;
  Array<int32_t> count;  // (capacity,), of each listed group
  int32_t* offset;       // (capacity,)
  int64_t npart_min;

  explicit GroupOrder(Arguments& in)
      : label(in.argument<int32_t>("label", {any})),
        num(in.count("num", label.rows())),
        order(in.result<int32_t>("order", {label.rows()})),
        ngroups(in.result<int32_t>("ngroups", {})),
        count(in.result<int32_t>("count", {any})),
        offset(in.result<int32_t>("offset", {room()})),
        npart_min(in.attributes().integer("npart_min")) {
    if (npart_min < 1) throw Refusal("npart_min is " + std::to_string(npart_min) + "; it must be at least 1.");
    in.expect(room() >= label.rows() / npart_min, count, 1, "count", "of at least the maximum number of groups");
  }

  int64_t room() const { return count.rows(); }
};

}  // namespace jztree
