// The field of the periodic images of a box minus its mean density (L. Hernquist, F. R. Bouchet & Y. Suto, 1991, ApJS
// 75, 231).
//
// Trees sum over the near images: those at most `reach[d]` box lengths away in each direction, 27 of a cube. The rest,
// Ewald's sum minus the near images, has no singularity as near as the longest side of the box. So polynomials
// interpolate it: R(y - x), with x and y in the box, is a sum over Chebyshev nodes for x times nodes for y (W. Fong &
// E. Darve, 2009, J. Comput. Phys. 228, 8712). For a cube, its error falls like 4.2^-order.
//
// With a = 6 over the longest side, the real part of Ewald's sum vanishes for the other images in float64. So
// R(d) = sum over waves of 4 pi / V exp(-k^2 / 4 a^2) / k^2 cos(k d) - pi / (a^2 V) - sum over near images of erf(a r)
// / r.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/cpu/lanes.h"
#include "common/cpu/parallel.h"

namespace jztree {

// A table (n, n, n), and its product with a matrix (m, n) along each axis.
class Cube {
 public:
  explicit Cube(int size = 0) : size_(size), values_(static_cast<size_t>(size) * size * size) {}
  double& operator()(int i, int j, int k) { return values_[index(i, j, k)]; }
  double operator()(int i, int j, int k) const { return values_[index(i, j, k)]; }
  int size() const { return size_; }
  const double* row(int i, int j) const { return &values_[index(i, j, 0)]; }
  double* row(int i, int j) { return &values_[index(i, j, 0)]; }

 private:
  size_t index(int i, int j, int k) const {
    return (static_cast<size_t>(i) * static_cast<size_t>(size_) + static_cast<size_t>(j)) * static_cast<size_t>(size_) +
           static_cast<size_t>(k);
  }
  int size_;
  std::vector<double> values_;
};

class ImageField {
 public:
  static constexpr int max_dims = 4;
  using Shift = std::array<double, max_dims>;
  static constexpr int max_order = 18, max_reach = 4;

  // An open space, without images.
  ImageField() : shifts_(1, Shift{}) {}

  // The images for pairs that use the nearest one, if differences of places are below a period. period: in `dims`
  // dimensions, 0 where no other image is nearer.
  static ImageField nearest(const double* period, int dims) {
    ImageField images;
    images.only_nearest_ = true;
    for (int d = 0; d < dims; ++d) {
      images.period_[d] = period[d];
      for (size_t i = images.shifts_.size(); i-- > 0 && period[d] > 0;)
        for (const double shift : {-period[d], period[d]}) {
          images.shifts_.push_back(images.shifts_[i]);
          images.shifts_.back()[static_cast<size_t>(d)] = shift;
        }
    }
    return images;
  }

  // period: of the three dimensions; places are at most half a period from 0. error: of the potentials.
  ImageField(const double* period, double error, const Parallel& parallel)
      : order_(error >= 1e-4   ? 8
               : error >= 1e-5 ? 10
               : error >= 1e-8 ? 14
                               : max_order) {
    std::copy_n(period, 3, period_);
    const double longest = std::max({period[0], period[1], period[2]});
    for (int d = 0; d < 3; ++d)
      reach_[d] = std::min(max_reach, static_cast<int>(std::ceil(longest / period[d] * (1 - 1e-9))));
    for (int x = -reach_[0]; x <= reach_[0]; ++x)
      for (int y = -reach_[1]; y <= reach_[1]; ++y)
        for (int z = -reach_[2]; z <= reach_[2]; ++z) shifts_.push_back({x * period[0], y * period[1], z * period[2]});
    for (int a = 0; a < order_; ++a) {
      node_[a] = std::cos(pi * (2 * a + 1) / (2 * order_));
      double values[max_order];
      polynomials(node_[a], values);
      for (int i = 0; i < order_; ++i) transfer_[a][i] = (i == 0 ? 1 : 2) * values[i] / order_;
    }
    make_table(6 / longest, parallel);
  }

  bool is_open() const { return order_ == 0; }
  bool only_nearest() const { return only_nearest_; }
  const std::vector<Shift>& shifts() const { return shifts_; }
  double period(int d) const { return period_[d]; }

  // Take the sources: places (n, 3) and weights (n,). The result does not depend on the number of threads.
  void take(const double* place, const double* weight, int64_t n, const Parallel& parallel) {
    const int64_t blocks = (n + rows_of_a_block - 1) / rows_of_a_block;
    std::vector<Cube> sums(static_cast<size_t>(blocks), Cube(order_));
    parallel.blocks(blocks, 1, [&](int64_t from, int64_t to) {
      for (int64_t block = from; block < to; ++block)
        for (int64_t i = block * rows_of_a_block; i < std::min(n, (block + 1) * rows_of_a_block); ++i)
          add_moments(place + i * 3, weight[i], sums[static_cast<size_t>(block)]);
    });
    Cube moments(order_);
    for (const Cube& part : sums) each([&](int i, int j, int k) { moments(i, j, k) += part(i, j, k); });
    const Cube at_nodes = transformed(moments, false);
    Cube field(order_);
    parallel.blocks(order_ * order_, 1, [&](int64_t from, int64_t to) {
      for (int64_t row = from; row < to; ++row) {
        const int i = static_cast<int>(row) / order_, j = static_cast<int>(row) % order_;
        for (int k = 0; k < order_; ++k) field(i, j, k) = at_node(at_nodes, i, j, k);
      }
    });
    coefficients_ = transformed(field, true);
  }

  // Add the sums of m R, and of its gradient, at the lanes of `x`.
  template <bool Accelerate>
  void add(const Lanes<double>* x, Lanes<double>& potential, Lanes<double>* acceleration) const {
    using V = Lanes<double>;
    V value[3][max_order], slope[3][max_order];
    for (int d = 0; d < 3; ++d) {
      const V unit = x[d] * (2 / period_[d]);
      polynomials(unit, value[d]);
      slopes(unit, value[d], slope[d]);
    }
    V sums[4] = {};
    for (int i = 0; i < order_; ++i) {
      V outer[3] = {};
      for (int j = 0; j < order_; ++j) {
        V inner{}, inner_slope{};
        const double* row = coefficients_.row(i, j);
        for (int k = 0; k < order_; ++k) {
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
    for (int d = 0; d < 3 && Accelerate; ++d) acceleration[d] = acceleration[d] + sums[d] * (2 / period_[d]);
  }

 private:
  static constexpr double pi = 3.14159265358979323846;
  static constexpr int64_t rows_of_a_block = 4096;
  static constexpr int max_differences = max_order * max_order / 2, max_waves = 16;

  // Chebyshev polynomials and their derivatives. V: a number or a vector.
  template <typename V>
  void polynomials(const V& x, V* values) const {
    values[0] = V(1.), values[1] = x;
    for (int i = 2; i < order_; ++i) values[i] = x * values[i - 1] * 2. - values[i - 2];
  }
  template <typename V>
  void slopes(const V& x, const V* values, V* slopes) const {
    slopes[0] = V(0.), slopes[1] = V(1.);
    for (int i = 2; i < order_; ++i) slopes[i] = (values[i - 1] + x * slopes[i - 1]) * 2. - slopes[i - 2];
  }

  template <typename Visit>
  void each(const Visit& visit) const {
    for (int i = 0; i < order_; ++i)
      for (int j = 0; j < order_; ++j)
        for (int k = 0; k < order_; ++k) visit(i, j, k);
  }

  void add_moments(const double* place, double weight, Cube& sums) const {
    double values[3][max_order];
    for (int d = 0; d < 3; ++d) polynomials(place[d] * 2 / period_[d], values[d]);
    for (int i = 0; i < order_; ++i)
      for (int j = 0; j < order_; ++j) {
        const double factor = weight * values[0][i] * values[1][j];
        double* row = sums.row(i, j);
        for (int k = 0; k < order_; ++k) row[k] += factor * values[2][k];
      }
  }

  // From moments of polynomials to weights of nodes, or from values at nodes to coefficients of polynomials.
  Cube transformed(Cube cube, bool to_coefficients) const {
    for (int axis = 0; axis < 3; ++axis) {
      Cube turned(order_);
      each([&](int i, int j, int k) {
        double sum = 0;
        for (int a = 0; a < order_; ++a) sum += (to_coefficients ? transfer_[a][i] : transfer_[i][a]) * cube(a, j, k);
        turned(j, k, i) = sum;  // after three turns, the axes are in order
      });
      cube = std::move(turned);
    }
    return cube;
  }

  double at_node(const Cube& weights, int i, int j, int k) const {
    double sum = 0;
    for (int a = 0; a < order_; ++a)
      for (int b = 0; b < order_; ++b) {
        const double *table = table_.row(difference_[i][a], difference_[j][b]), *row = weights.row(a, b);
        const int* column = difference_[k];
        for (int c = 0; c < order_; ++c) sum += table[column[c]] * row[c];
      }
    return sum;
  }

  // R for all absolute differences between nodes.
  void make_table(double rate, const Parallel& parallel) {
    std::vector<double> distances;
    for (int a = 0; a < order_; ++a)
      for (int b = 0; b < order_; ++b) {
        const double distance = std::fabs(node_[a] - node_[b]);
        const auto listed = std::find_if(distances.begin(), distances.end(),
                                         [&](double earlier) { return std::fabs(earlier - distance) < 1e-12; });
        difference_[a][b] = static_cast<int>(listed - distances.begin());
        if (listed == distances.end()) distances.push_back(distance);
      }
    const int count = static_cast<int>(distances.size());
    table_ = Cube(count);
    const Cube waves = sum_of_waves(rate, distances);
    const double mean = pi / (rate * rate * period_[0] * period_[1] * period_[2]);
    parallel.blocks(count * count, 8, [&](int64_t from, int64_t to) {
      for (int64_t row = from; row < to; ++row)
        for (int k = 0; k < count; ++k) {
          const int i = static_cast<int>(row) / count, j = static_cast<int>(row) % count;
          const double x = distances[static_cast<size_t>(i)] * period_[0] / 2;
          const double y = distances[static_cast<size_t>(j)] * period_[1] / 2;
          const double z = distances[static_cast<size_t>(k)] * period_[2] / 2;
          double sum = waves(i, j, k) - mean;
          for (const Shift& shift : shifts_) {
            const double r = std::hypot(x + shift[0], y + shift[1], z + shift[2]);
            sum -= r * rate > 6 ? 1 / r : r > 0 ? std::erf(rate * r) / r : 2 / std::sqrt(pi) * rate;
          }
          table_(i, j, k) = sum;
        }
    });
  }

  // The sums over waves of products of cosines, one axis after the other.
  Cube sum_of_waves(double rate, const std::vector<double>& distances) const {
    const int count = static_cast<int>(distances.size()), size = std::max(count, max_waves);
    const double factor = 4 * pi / (period_[0] * period_[1] * period_[2]);
    Cube cube(size);
    int waves[3];
    for (int d = 0; d < 3; ++d) waves[d] = std::min(max_waves, static_cast<int>(6 * rate * period_[d] / pi) + 2);
    for (int x = 0; x < waves[0]; ++x)
      for (int y = 0; y < waves[1]; ++y)
        for (int z = 0; z < waves[2]; ++z) {
          const double wave[3] = {2 * pi * x / period_[0], 2 * pi * y / period_[1], 2 * pi * z / period_[2]};
          const double square = wave[0] * wave[0] + wave[1] * wave[1] + wave[2] * wave[2];
          const double both = (x > 0 ? 2 : 1) * (y > 0 ? 2 : 1) * (z > 0 ? 2 : 1);
          if (square > 0) cube(x, y, z) = both * factor * std::exp(-square / (4 * rate * rate)) / square;
        }
    int extent[3] = {waves[0], waves[1], waves[2]};
    for (int axis = 0; axis < 3; ++axis) {
      Cube turned(size);
      for (int u = 0; u < count; ++u)
        for (int wave = 0; wave < extent[0]; ++wave) {
          const double cosine = std::cos(pi * wave * distances[static_cast<size_t>(u)]);
          for (int j = 0; j < extent[1]; ++j)
            for (int k = 0; k < extent[2]; ++k) turned(j, k, u) += cosine * cube(wave, j, k);
        }
      cube = std::move(turned);
      extent[0] = extent[1], extent[1] = extent[2], extent[2] = count;
    }
    return cube;
  }

  bool only_nearest_ = false;
  int order_ = 0, reach_[3] = {};
  double period_[max_dims] = {}, node_[max_order], transfer_[max_order][max_order];
  std::vector<Shift> shifts_;  // of the near images
  int difference_[max_order][max_order];
  Cube table_, coefficients_;
};

}  // namespace jztree
