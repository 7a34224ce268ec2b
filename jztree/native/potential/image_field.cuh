// The field of the other images of a periodic box (image_field.h) on a GPU, in float64.
//
// The order of the polynomials depends on the error, which only the GPU knows, so launches are large enough for the
// highest order. A thread sums the moment of a polynomial over the rows of a chunk, then a thread adds the chunks in
// order, so sums have the same bits in every run. Not tuned on a GPU yet.
#pragma once

#include <cstdint>

#include "common/cuda/context.cuh"
#include "group_trees.cuh"
#include "image_grid.h"

namespace jztree {

constexpr int image_threads = 256, rows_of_image_tile = 32;
constexpr int64_t rows_of_image_chunk = 4096;
constexpr int max_coefficients = ImageGrid::max_order * ImageGrid::max_order * ImageGrid::max_order;

// The field of the images that are not near.
struct ImageSums {
  const ImageGrid* grid;  // of order 0 if nothing is summed over images
  double* sums;           // (n, 4): at each particle in z-order the sums of m grad R, and of m R
};

struct ImageTables {
  double *amplitude, *cosine;  // (waves, waves, waves), (waves, differences)
  double* rest;                // R between nodes, (differences, differences, differences)
};

struct Indices {
  int i, j, k;

  __device__ Indices(int64_t number, int size)
      : i(static_cast<int>(number / (size * size))),
        j(static_cast<int>(number / size % size)),
        k(static_cast<int>(number % size)) {}
};

template <int D>
__global__ void make_image_grid(const __grid_constant__ GroupTrees<D> trees, Lengths error, ImageGrid* grid) {
  if (thread_index() > 0) return;
  if (!trees.sums_over_images() || trees.in.groups() == 0 || trees.tree_of(trees.in.begin(0)) != 0) {
    *grid = ImageGrid();
    return;
  }
  double sides[3];
  for (int d = 0; d < 3; ++d) sides[d] = trees.in.box[d] * trees.frame(0).length_factor;
  *grid = ImageGrid(sides, error[0]);
}

static __global__ void tabulate_waves(const ImageGrid* grid, ImageTables tables) {
  constexpr int waves = ImageGrid::max_waves;
  const int64_t number = thread_index();
  if (grid->order == 0) return;
  if (number < waves * waves * waves) {
    const Indices at(number, waves);
    tables.amplitude[number] = grid->amplitude(at.i, at.j, at.k);
  }
  if (number < waves * grid->differences)
    tables.cosine[number] =
        grid->cosine(static_cast<int>(number / grid->differences), static_cast<int>(number % grid->differences));
}

static __global__ void tabulate_rest(const ImageGrid* grid, ImageTables tables) {
  const int count = grid->differences;
  const int64_t number = thread_index();
  if (number >= static_cast<int64_t>(count) * count * count) return;
  const Indices at(number, count);
  double sum = 0;
  for (int x = 0; x < grid->waves(0); ++x) {
    double of_x = 0;
    for (int y = 0; y < grid->waves(1); ++y) {
      double of_y = 0;
      const double* amplitude = tables.amplitude + (x * ImageGrid::max_waves + y) * ImageGrid::max_waves;
      for (int z = 0; z < grid->waves(2); ++z) of_y += amplitude[z] * tables.cosine[z * count + at.k];
      of_x += of_y * tables.cosine[y * count + at.j];
    }
    sum += of_x * tables.cosine[x * count + at.i];
  }
  tables.rest[number] = grid->rest(sum, at.i, at.j, at.k);
}

// A block per chunk of rows, and per as many polynomials as it has threads: sums[chunk] = the moments of the chunk.
template <int D>
__global__ void sum_image_moments(const __grid_constant__ GroupTrees<D> trees, const ImageGrid* grid, double* sums) {
  constexpr int slices = (max_coefficients + image_threads - 1) / image_threads;
  const int order = grid->order, coefficients = order * order * order;
  const int64_t chunk = blockIdx.x / slices;
  const int number = static_cast<int>(blockIdx.x % slices) * image_threads + static_cast<int>(threadIdx.x);
  if (number - static_cast<int>(threadIdx.x) >= coefficients) return;
  auto* values = reinterpret_cast<double (*)[3][ImageGrid::max_order]>(dynamic_shared());
  const Indices at(number, order);
  const int64_t end = std::min(trees.in.end(0), trees.in.begin(0) + (chunk + 1) * rows_of_image_chunk);
  double sum = 0;
  for (int64_t row = trees.in.begin(0) + chunk * rows_of_image_chunk; row < end; row += rows_of_image_tile) {
    const int rows = static_cast<int>(std::min<int64_t>(rows_of_image_tile, end - row));
    for (int i = static_cast<int>(threadIdx.x); i < 3 * rows; i += image_threads) {
      double* polynomials = values[i / 3][i % 3];
      grid->polynomials(trees.place[(row + i / 3) * D + i % 3] * 2 / grid->period[i % 3], polynomials);
      for (int k = 0; k < order && i % 3 == 0; ++k) polynomials[k] *= trees.weight[row + i / 3];
    }
    __syncthreads();
    for (int i = 0; i < rows && number < coefficients; ++i)
      sum += values[i][0][at.i] * values[i][1][at.j] * values[i][2][at.k];
    __syncthreads();
  }
  if (number < coefficients) sums[chunk * coefficients + number] = sum;
}

template <int D>
__global__ void add_image_chunks(const __grid_constant__ GroupTrees<D> trees, const ImageGrid* grid, const double* sums,
                                 double* moments) {
  const int64_t number = thread_index(), coefficients = grid->order * grid->order * grid->order;
  if (number >= coefficients) return;
  const int64_t chunks = (trees.in.size(0) + rows_of_image_chunk - 1) / rows_of_image_chunk;
  double sum = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += sums[chunk * coefficients + number];
  moments[number] = sum;
}

// A product with the transfer matrix along the first axis, which becomes the last one.
static __global__ void transform_images(const ImageGrid* grid, bool to_coefficients, const double* from, double* to) {
  const int order = grid->order;
  const int64_t number = thread_index();
  if (number >= order * order * order) return;
  const Indices at(number, order);
  double sum = 0;
  for (int a = 0; a < order; ++a)
    sum +=
        (to_coefficients ? grid->transfer[a][at.i] : grid->transfer[at.i][a]) * from[(a * order + at.j) * order + at.k];
  to[(at.j * order + at.k) * order + at.i] = sum;
}

// The field at a node of the grid, from the weights of all nodes.
static __global__ void sum_rest_at_nodes(const ImageGrid* grid, const double* rest, const double* weights,
                                         double* field) {
  const int order = grid->order;
  const int64_t number = thread_index();
  if (number >= order * order * order) return;
  const Indices at(number, order);
  double sum = 0;
  for (int a = 0; a < order; ++a)
    for (int b = 0; b < order; ++b) {
      const int64_t row = grid->difference_number[at.i][a] * grid->differences + grid->difference_number[at.j][b];
      for (int c = 0; c < order; ++c)
        sum += rest[row * grid->differences + grid->difference_number[at.k][c]] * weights[(a * order + b) * order + c];
    }
  field[number] = sum;
}

template <int D>
__global__ void add_image_field(const __grid_constant__ GroupTrees<D> trees, ImageSums images,
                                const double* coefficients) {
  const int64_t row = thread_index();
  if (images.grid->order == 0 || trees.tree_of(row) != 0) return;
  double place[D];
  for (int d = 0; d < D; ++d) place[d] = trees.place[row * D + d];
  double* sums = images.sums + row * 4;
  for (int i = 0; i < 4; ++i) sums[i] = 0;
  images.grid->add<true>(coefficients, place, sums[3], sums);
}

template <int D>
ImageSums image_field(Queue& queue, const GroupTrees<D>& trees, const Lengths& error) {
  static_assert(D == 3);
  constexpr int waves = ImageGrid::max_waves, differences = ImageGrid::max_differences;
  constexpr int64_t distances = int64_t{differences} * differences * differences;
  constexpr int64_t slices = (max_coefficients + image_threads - 1) / image_threads;
  const int64_t n = trees.in.rows, chunks = (n + rows_of_image_chunk - 1) / rows_of_image_chunk;
  auto* grid = queue.scratch<ImageGrid>(1);
  const ImageTables tables{queue.scratch<double>(waves * waves * waves), queue.scratch<double>(waves * differences),
                           queue.scratch<double>(distances)};
  auto* sums = queue.scratch<double>(chunks * max_coefficients);
  double *from = queue.scratch<double>(max_coefficients), *to = queue.scratch<double>(max_coefficients);
  queue.launch(1, 1, 0, make_image_grid<D>, trees, error, grid);
  queue.launch_over(waves * waves * waves, tabulate_waves, grid, tables);
  queue.launch_over(distances, tabulate_rest, grid, tables);
  queue.launch(chunks * slices, image_threads, rows_of_image_tile * 3 * ImageGrid::max_order * sizeof(double),
               sum_image_moments<D>, trees, grid, sums);
  queue.launch_over(max_coefficients, add_image_chunks<D>, trees, grid, sums, from);
  for (const bool to_coefficients : {false, true}) {
    for (int axis = 0; axis < 3; ++axis, std::swap(from, to))
      queue.launch_over(max_coefficients, transform_images, grid, to_coefficients, from, to);
    if (to_coefficients) continue;
    queue.launch_over(max_coefficients, sum_rest_at_nodes, grid, tables.rest, from, to);
    std::swap(from, to);
  }
  const ImageSums images{grid, queue.scratch<double>(n * 4)};
  queue.launch_over(n, add_image_field<D>, trees, images, from);
  return images;
}

}  // namespace jztree
