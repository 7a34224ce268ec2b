// Validates lengths that are only known at run time. Like `check`, it passes them through.
#pragma once

#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>

#include "common/arguments.h"
#include "common/scale.h"

namespace jztree {

struct CheckedLengths {
  const Buffer &box, &linking;  // words: one length per dimension; one linking length, or none
  const Buffer &checked_box, &checked_linking;
  int64_t dims;
  bool linked;
  Lengths period, length;
  std::string_view name;  // of the linking length

  explicit CheckedLengths(Arguments& in)
      : box(in.any_argument("box")),
        linking(in.any_argument("linking")),
        checked_box(in.any_result("checked_box")),
        checked_linking(in.any_result("checked_linking")),
        dims(box.rank == 2 ? box.rows() : 0),
        linked(linking.elements() > 0),
        period(in.as_lengths(box, "box", dims)),
        name(in.attributes().text("name")) {
    if (dims < 1 || dims > max_dims) in.refuse(box, "box", "one length per dimension, for 1 to 8 dimensions");
    if (linked) length = in.as_lengths(linking, "linking", 1);
    if (checked_box.bytes() != box.bytes()) in.refuse(checked_box, "checked_box", "of the same size as box");
    if (checked_linking.bytes() != linking.bytes())
      in.refuse(checked_linking, "checked_linking", "of the same size as linking");
  }

  // sides: on the host. link: on the host, or null without a linking length.
  void expect_valid(const double* sides, const double* link) const {
    for (int64_t d = 0; d < dims; ++d) {
      const bool valid = sides[d] >= 0 && std::isfinite(sides[d]);
      if (valid && sides[d] <= farthest<double>) continue;
      throw Refusal("boxsize is " + number(sides[d]) + " in dimension " + std::to_string(d) + "; lengths must be " +
                    (valid ? "at most " + number(farthest<double>) : "finite and positive, or 0 where open") + ".");
    }
    if (!link) return;
    if (!(*link >= 0) || std::isinf(*link))
      throw Refusal(std::string(name) + " is " + number(*link) + "; it must be finite and not negative.");
  }

 private:
  static std::string number(double value) {
    char text[32];
    std::snprintf(text, sizeof(text), "%g", value);
    return text;
  }
};

}  // namespace jztree
