// The near images of a periodic box, and the Chebyshev nodes between which polynomials interpolate the field of the
// other images; see image_field.h.
#pragma once

#include <algorithm>
#include <cmath>

#include "common/portable.h"

namespace jztree {

struct ImageGrid {
  static constexpr int max_order = 18, max_reach = 4, max_waves = 16;
  static constexpr int max_differences = max_order * max_order / 4 + 1;

  int order = 0;  // polynomials per axis; 0 in open space, without images
  int reach[3] = {};
  int differences = 0;
  double period[3] = {}, rate = 0, node[max_order], transfer[max_order][max_order];
  double difference[max_differences];           // the distances between nodes
  int difference_number[max_order][max_order];  // of two nodes

  ImageGrid() = default;

  // sides: of the box; places are at most half a side from 0. error: of the potentials.
  JZTREE_BOTH ImageGrid(const double* sides, double error)
      : order(error >= 1e-4   ? 8
              : error >= 1e-5 ? 10
              : error >= 1e-8 ? 14
                              : max_order) {
    const double longest = std::max(std::max(sides[0], sides[1]), sides[2]);
    for (int d = 0; d < 3; ++d) {
      period[d] = sides[d];
      reach[d] = std::min(int{max_reach}, static_cast<int>(std::ceil(longest / sides[d] * (1 - 1e-9))));
    }
    rate = 6 / longest;
    for (int a = 0; a < order; ++a) {
      node[a] = std::cos(pi() * (2 * a + 1) / (2 * order));
      double values[max_order];
      polynomials(node[a], values);
      for (int i = 0; i < order; ++i) transfer[a][i] = (i == 0 ? 1 : 2) * values[i] / order;
    }
    for (int a = 0; a < order; ++a)
      for (int b = 0; b < order; ++b) difference_number[a][b] = number_of(std::fabs(node[a] - node[b]));
  }

  JZTREE_BOTH int shifts() const { return (2 * reach[0] + 1) * (2 * reach[1] + 1) * (2 * reach[2] + 1); }
  // From the box to a near image of it.
  JZTREE_BOTH void shift(int image, double* to) const {
    const int z = 2 * reach[2] + 1, y = 2 * reach[1] + 1;
    to[0] = (image / (y * z) - reach[0]) * period[0];
    to[1] = (image / z % y - reach[1]) * period[1];
    to[2] = (image % z - reach[2]) * period[2];
  }

  // Chebyshev polynomials and their derivatives. V: a number or a vector.
  template <typename V>
  JZTREE_BOTH void polynomials(const V& x, V* values) const {
    values[0] = V(1.), values[1] = x;
    for (int i = 2; i < order; ++i) values[i] = x * values[i - 1] * 2. - values[i - 2];
  }
  template <typename V>
  JZTREE_BOTH void slopes(const V& x, const V* values, V* slopes) const {
    slopes[0] = V(0.), slopes[1] = V(1.);
    for (int i = 2; i < order; ++i) slopes[i] = (values[i - 1] + x * slopes[i - 1]) * 2. - slopes[i - 2];
  }

  // Add the sums of m R, and of its gradient, at `x`. coefficients: of the polynomials, (order, order, order).
  template <bool Accelerate, typename V>
  JZTREE_BOTH void add(const double* coefficients, const V* x, V& potential, V* acceleration) const {
    V value[3][max_order], slope[3][max_order];
    for (int d = 0; d < 3; ++d) {
      const V unit = x[d] * (2 / period[d]);
      polynomials(unit, value[d]);
      slopes(unit, value[d], slope[d]);
    }
    V sums[4] = {};
    for (int i = 0; i < order; ++i) {
      V outer[3] = {};
      for (int j = 0; j < order; ++j) {
        V inner{}, inner_slope{};
        const double* row = coefficients + (i * order + j) * order;
        for (int k = 0; k < order; ++k) {
          inner = inner + value[2][k] * row[k];
          if (Accelerate) inner_slope = inner_slope + slope[2][k] * row[k];
        }
        outer[0] = outer[0] + inner * value[1][j];
        if (!Accelerate) continue;
        outer[1] = outer[1] + inner * slope[1][j];
        outer[2] = outer[2] + inner_slope * value[1][j];
      }
      sums[3] = sums[3] + outer[0] * value[0][i];
      if (!Accelerate) continue;
      sums[0] = sums[0] + outer[0] * slope[0][i];
      sums[1] = sums[1] + outer[1] * value[0][i];
      sums[2] = sums[2] + outer[2] * value[0][i];
    }
    potential = potential + sums[3];
    for (int d = 0; d < 3 && Accelerate; ++d) acceleration[d] = acceleration[d] + sums[d] * (2 / period[d]);
  }

  // The number of waves along an axis, from 0 on, and the amplitude of a wave and its mirror images.
  JZTREE_BOTH int waves(int d) const {
    return std::min(int{max_waves}, static_cast<int>(6 * rate * period[d] / pi()) + 2);
  }
  JZTREE_BOTH double amplitude(int x, int y, int z) const {
    const double factor = 4 * pi() / (period[0] * period[1] * period[2]);
    const double wave[3] = {2 * pi() * x / period[0], 2 * pi() * y / period[1], 2 * pi() * z / period[2]};
    const double square = wave[0] * wave[0] + wave[1] * wave[1] + wave[2] * wave[2];
    const double both = (x > 0 ? 2 : 1) * (y > 0 ? 2 : 1) * (z > 0 ? 2 : 1);
    return square > 0 ? both * factor * std::exp(-square / (4 * rate * rate)) / square : 0;
  }
  // Of a wave along an axis between two nodes.
  JZTREE_BOTH double cosine(int wave, int number) const { return std::cos(pi() * wave * difference[number]); }

  // R between nodes, from the sum over waves. i, j, k: numbers of their differences.
  JZTREE_BOTH double rest(double waves, int i, int j, int k) const {
    const double x = difference[i] * period[0] / 2, y = difference[j] * period[1] / 2,
                 z = difference[k] * period[2] / 2;
    double sum = waves - pi() / (rate * rate * period[0] * period[1] * period[2]);
    for (int image = 0; image < shifts(); ++image) {
      double away[3];
      shift(image, away);
      const double r = length(x + away[0], y + away[1], z + away[2]);
      sum -= r * rate > 6 ? 1 / r : r > 0 ? std::erf(rate * r) / r : 2 / std::sqrt(pi()) * rate;
    }
    return sum;
  }

 private:
  JZTREE_BOTH static constexpr double pi() { return 3.14159265358979323846; }

  JZTREE_BOTH static double length(double x, double y, double z) {
#ifdef __CUDA_ARCH__
    return norm3d(x, y, z);
#else
    return std::hypot(x, y, z);
#endif
  }

  // The number of a distance between nodes, which is new if none is equal except for rounding.
  JZTREE_BOTH int number_of(double distance) {
    int number = 0;
    while (number < differences && std::fabs(difference[number] - distance) >= 1e-12) ++number;
    if (number == differences) difference[differences++] = distance;
    return number;
  }
};

}  // namespace jztree
