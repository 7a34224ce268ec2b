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
#include <cstdint>
#include <utility>
#include <vector>

#include "common/cpu/parallel.h"
#include "image_grid.h"

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
      : grid_(period, error), shifts_(static_cast<size_t>(grid_.shifts())), table_(grid_.differences) {
    std::copy_n(period, 3, period_);
    for (size_t image = 0; image < shifts_.size(); ++image) grid_.shift(static_cast<int>(image), shifts_[image].data());
    make_table(parallel);
  }

  const ImageGrid& grid() const { return grid_; }
  bool is_open() const { return grid_.order == 0; }
  bool only_nearest() const { return only_nearest_; }
  const std::vector<Shift>& shifts() const { return shifts_; }
  const double* period() const { return period_; }

  // Take the sources: places (n, 3) and weights (n,). The result does not depend on the number of threads.
  void take(const double* place, const double* weight, int64_t n, const Parallel& parallel) {
    const int order = grid_.order;
    const int64_t blocks = (n + rows_of_a_block - 1) / rows_of_a_block;
    std::vector<Cube> sums(static_cast<size_t>(blocks), Cube(order));
    parallel.blocks(blocks, 1, [&](int64_t from, int64_t to) {
      for (int64_t block = from; block < to; ++block)
        for (int64_t i = block * rows_of_a_block; i < std::min(n, (block + 1) * rows_of_a_block); ++i)
          add_moments(place + i * 3, weight[i], sums[static_cast<size_t>(block)]);
    });
    Cube moments(order);
    for (const Cube& part : sums) each([&](int i, int j, int k) { moments(i, j, k) += part(i, j, k); });
    const Cube at_nodes = transformed(moments, false);
    Cube field(order);
    parallel.blocks(order * order, 1, [&](int64_t from, int64_t to) {
      for (int64_t row = from; row < to; ++row) {
        const int i = static_cast<int>(row) / order, j = static_cast<int>(row) % order;
        for (int k = 0; k < order; ++k) field(i, j, k) = at_node(at_nodes, i, j, k);
      }
    });
    coefficients_ = transformed(field, true);
  }

  // Add the sums of m R, and of its gradient, at `x`. V: a number or a vector.
  template <bool Accelerate, typename V>
  void add(const V* x, V& potential, V* acceleration) const {
    grid_.add<Accelerate>(coefficients_.row(0, 0), x, potential, acceleration);
  }

 private:
  static constexpr int64_t rows_of_a_block = 4096;

  template <typename Visit>
  void each(const Visit& visit) const {
    for (int i = 0; i < grid_.order; ++i)
      for (int j = 0; j < grid_.order; ++j)
        for (int k = 0; k < grid_.order; ++k) visit(i, j, k);
  }

  void add_moments(const double* place, double weight, Cube& sums) const {
    double values[3][ImageGrid::max_order];
    for (int d = 0; d < 3; ++d) grid_.polynomials(place[d] * 2 / grid_.period[d], values[d]);
    for (int i = 0; i < grid_.order; ++i)
      for (int j = 0; j < grid_.order; ++j) {
        const double factor = weight * values[0][i] * values[1][j];
        double* row = sums.row(i, j);
        for (int k = 0; k < grid_.order; ++k) row[k] += factor * values[2][k];
      }
  }

  // From moments of polynomials to weights of nodes, or from values at nodes to coefficients of polynomials.
  Cube transformed(Cube cube, bool to_coefficients) const {
    for (int axis = 0; axis < 3; ++axis) {
      Cube turned(grid_.order);
      each([&](int i, int j, int k) {
        double sum = 0;
        for (int a = 0; a < grid_.order; ++a)
          sum += (to_coefficients ? grid_.transfer[a][i] : grid_.transfer[i][a]) * cube(a, j, k);
        turned(j, k, i) = sum;  // after three turns, the axes are in order
      });
      cube = std::move(turned);
    }
    return cube;
  }

  double at_node(const Cube& weights, int i, int j, int k) const {
    const auto& number = grid_.difference_number;
    double sum = 0;
    for (int a = 0; a < grid_.order; ++a)
      for (int b = 0; b < grid_.order; ++b) {
        const double *table = table_.row(number[i][a], number[j][b]), *row = weights.row(a, b);
        const int* column = number[k];
        for (int c = 0; c < grid_.order; ++c) sum += table[column[c]] * row[c];
      }
    return sum;
  }

  // R for all absolute differences between nodes.
  void make_table(const Parallel& parallel) {
    const int count = grid_.differences;
    const Cube waves = sum_of_waves();
    parallel.blocks(count * count, 8, [&](int64_t from, int64_t to) {
      for (int64_t row = from; row < to; ++row)
        for (int k = 0; k < count; ++k) {
          const int i = static_cast<int>(row) / count, j = static_cast<int>(row) % count;
          table_(i, j, k) = grid_.rest(waves(i, j, k), i, j, k);
        }
    });
  }

  // The sums over waves of products of cosines, one axis after the other.
  Cube sum_of_waves() const {
    const int count = grid_.differences, size = std::max(count, ImageGrid::max_waves);
    int extent[3] = {grid_.waves(0), grid_.waves(1), grid_.waves(2)};
    Cube cube(size);
    for (int x = 0; x < extent[0]; ++x)
      for (int y = 0; y < extent[1]; ++y)
        for (int z = 0; z < extent[2]; ++z) cube(x, y, z) = grid_.amplitude(x, y, z);
    for (int axis = 0; axis < 3; ++axis) {
      Cube turned(size);
      for (int u = 0; u < count; ++u)
        for (int wave = 0; wave < extent[0]; ++wave) {
          const double cosine = grid_.cosine(wave, u);
          for (int j = 0; j < extent[1]; ++j)
            for (int k = 0; k < extent[2]; ++k) turned(j, k, u) += cosine * cube(wave, j, k);
        }
      cube = std::move(turned);
      extent[0] = extent[1], extent[1] = extent[2], extent[2] = count;
    }
    return cube;
  }

  ImageGrid grid_;
  bool only_nearest_ = false;
  double period_[max_dims] = {};
  std::vector<Shift> shifts_;  // of the near images
  Cube table_, coefficients_;
};

}  // namespace jztree
