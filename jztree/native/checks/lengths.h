// The check of lengths that are known only at run time. It hands them through, as `check` does its value.
#pragma once

#include <cmath>
#include <cstdio>
#include <string>

#include "common/arguments.h"

namespace jztree {

struct CheckedLengths {
  const Buffer &box, &rlink;  // words: of one length a dimension; of one linking length, or none
  const Buffer &checked_box, &checked_rlink;
  int64_t dims;
  bool linked;
  Lengths period, length;

  explicit CheckedLengths(Arguments& in)
      : box(in.any_argument("box")),
        rlink(in.any_argument("rlink")),
        checked_box(in.any_result("checked_box")),
        checked_rlink(in.any_result("checked_rlink")),
        dims(box.rank == 2 ? box.rows() : 0),
        linked(rlink.elements() > 0),
        period(in.as_lengths(box, "box", dims)) {
    if (dims < 1 || dims > max_dims) in.refuse(box, "box", "one length for each of 1 to 8 dimensions");
    if (linked) length = in.as_lengths(rlink, "rlink", 1);
    if (checked_box.bytes() != box.bytes()) in.refuse(checked_box, "checked_box", "as large as box");
    if (checked_rlink.bytes() != rlink.bytes()) in.refuse(checked_rlink, "checked_rlink", "as large as rlink");
  }

  // sides: on the host, as link, which is null if there is none.
  void expect_valid(const double* sides, const double* link) const {
    for (int64_t d = 0; d < dims; ++d)
      if (!(sides[d] >= 0) || std::isinf(sides[d]))
        throw Refusal("boxsize is " + number(sides[d]) + " in dimension " + std::to_string(d) +
                      "; lengths must be finite and positive, or 0 where open.");
    if (!link) return;
    if (!(*link >= 0) || std::isinf(*link))
      throw Refusal("the linking length rlink is " + number(*link) + "; it must be finite and not negative.");
  }

 private:
  static std::string number(double value) {
    char text[32];
    std::snprintf(text, sizeof(text), "%g", value);
    return text;
  }
};

}  // namespace jztree
