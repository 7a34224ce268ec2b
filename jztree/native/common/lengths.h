// What is wrong with box lengths and linking lengths, in words; empty if nothing.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

namespace jztree {

inline std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

inline std::string check_box(const double* period, int64_t dims) {
  for (int64_t d = 0; d < dims; ++d)
    if (!(period[d] >= 0) || std::isinf(period[d]))
      return "boxsize is " + number(period[d]) + " in dimension " + std::to_string(d) +
             "; lengths must be finite and positive, or 0 where open.";
  return {};
}

inline std::string check_rlink(double rlink, const double* period, int64_t dims) {
  if (!(rlink >= 0) || std::isinf(rlink))
    return "the linking length rlink is " + number(rlink) + "; it must be finite and not negative.";
  for (int64_t d = 0; d < dims; ++d)
    if (period[d] > 0 && rlink > period[d] / 2)
      return "the linking length rlink is " + number(rlink) + ", more than half the periodic box length " +
             number(period[d]) + ", so that nearest images do not decide links; use a smaller rlink or boxsize=0.";
  return {};
}

}  // namespace jztree
