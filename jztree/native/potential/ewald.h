// Ewald's sum over all periodic images of a source minus the mean density, term by term (P. P. Ewald,
// 1921, Ann. Phys. 369, 253; L. Hernquist, F. R. Bouchet & Y. Suto, 1991, ApJS 75, 231).
#pragma once

#include <cmath>

#include "common/portable.h"

namespace jztree {

struct EwaldSum {
  double period[3], rate;  // rate: images farther than 6 / rate and waves above 12 rate vanish in float64
  int reach[3], waves[3];

  JZTREE_BOTH explicit EwaldSum(const double* box) {
    const double shortest = std::fmin(std::fmin(box[0], box[1]), box[2]);
    rate = 3 / shortest;
    for (int d = 0; d < 3; ++d) {
      period[d] = box[d];
      reach[d] = static_cast<int>(2 * shortest / box[d] + 0.5);
      waves[d] = static_cast<int>(12 * rate * box[d] / (2 * pi)) + 1;
    }
  }

  // Add the potential of a source, and its gradient at the target, without the Newtonian part of the nearest
  // image. away: from the target to the nearest image of the source.
  JZTREE_BOTH void add(const double* away, double weight, double& potential, double* acceleration) const {
    for (int x = -reach[0]; x <= reach[0]; ++x)
      for (int y = -reach[1]; y <= reach[1]; ++y)
        for (int z = -reach[2]; z <= reach[2]; ++z) {
          const double image[3] = {away[0] + x * period[0], away[1] + y * period[1], away[2] + z * period[2]};
          add_image(image, x == 0 && y == 0 && z == 0, weight, potential, acceleration);
        }
    const double volume = period[0] * period[1] * period[2];
    potential -= weight * pi / (rate * rate * volume);
    for (int x = -waves[0]; x <= waves[0]; ++x)
      for (int y = -waves[1]; y <= waves[1]; ++y)
        for (int z = 0; z <= waves[2]; ++z) {
          const double wave[3] = {2 * pi * x / period[0], 2 * pi * y / period[1], 2 * pi * z / period[2]};
          const double square = wave[0] * wave[0] + wave[1] * wave[1] + wave[2] * wave[2];
          if (square == 0 || square > 144 * rate * rate) continue;
          const double both = (z == 0 ? 1 : 2) * weight * 4 * pi / volume;  // waves of both signs of z
          const double height = both * std::exp(-square / (4 * rate * rate)) / square;
          const double phase = wave[0] * away[0] + wave[1] * away[1] + wave[2] * away[2];
          potential += height * std::cos(phase);
          for (int d = 0; d < 3; ++d) acceleration[d] += height * std::sin(phase) * wave[d];
        }
  }

 private:
  static constexpr double pi = 3.14159265358979323846;

  JZTREE_BOTH void add_image(const double* image, bool nearest, double weight, double& potential,
                             double* acceleration) const {
    const double r2 = image[0] * image[0] + image[1] * image[1] + image[2] * image[2], r = std::sqrt(r2), u = rate * r;
    const double peak = 2 / std::sqrt(pi) * rate;
    double value, force;
    if (nearest && u < 0.02) {  // the first terms of the series of the error function
      value = -peak * (1 - u * u / 3 + u * u * u * u / 10);
      force = -peak * rate * rate * (2. / 3 - u * u * 2 / 5);
    } else {
      value = (nearest ? -std::erf(u) : std::erfc(u)) / r;
      force = (value + peak * std::exp(-u * u)) / r2;
    }
    potential += weight * value;
    for (int d = 0; d < 3; ++d) acceleration[d] += weight * force * image[d];
  }
};

}  // namespace jztree
