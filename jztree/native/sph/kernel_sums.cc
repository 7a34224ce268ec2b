// A thread takes one group of queries after the other and walks the tree once (kernel_walk.h). No data of pairs is
// stored, so memory depends only on the number of particles.

#include "kernel_sums.h"

#include <cstdint>
#include <limits>

#include "common/cpu/context.h"
#include "kernel_walk.h"

namespace jztree {
namespace {

// Whether float32 cannot square distances as small as the smoothing lengths.
template <int D, typename T>
bool needs_wide(const KernelSums<D, T>& in, const double* box) {
  if (!std::is_same<T, float>::value) return false;
  Scale<D, T> scale(box, open_span(box, in.sources, in.queries).template for_scale<T>());
  double shortest = std::numeric_limits<double>::infinity();
  if (in.form != static_cast<int64_t>(KernelForm::scatter))
    for (int64_t row = 0; row < (in.query_h.count > 1 ? in.queries.num() : 1); ++row)
      shortest = std::min(shortest, in.query_h[row]);
  if (in.form != static_cast<int64_t>(KernelForm::gather))
    for (int64_t row = 0; row < (in.source_h.count > 1 ? in.sources.num() : 1); ++row)
      shortest = std::min(shortest, in.source_h[row]);
  return shortest * static_cast<double>(scale.factor) < least_narrow_length(scale);
}

void put(const Buffer& to, int64_t place, double sum) {
  if (to.type == XLA_FFI_DataType_F32) {
    static_cast<float*>(to.data)[place] = static_cast<float>(sum);
  } else {
    static_cast<double*>(to.data)[place] = sum;
  }
}

template <int D, typename T, int Order>
void sum_all(const Parallel& parallel, KernelProblem<D, T>& problem, int by_h, int shift, const Buffer& to) {
  const RadialSum<T> radial(problem.dims, Order, by_h);
  const int64_t width = to.dims[1];
  const int powers = problem.form == KernelForm::scatter ? 0 : problem.powers;
  parallel.blocks(problem.queries->leaves(), 32, [&](int64_t begin, int64_t end) {
    KernelWalk<D, T, Order> walk(problem, radial);
    for (int64_t leaf = begin; leaf < end; ++leaf) {
      walk.run(leaf);
      for (int64_t i = 0; i < walk.count(); ++i)
        for (int64_t column = 0; column < width; ++column) {
          double sum = walk.sum(i, column) * problem.profile.norm, h = problem.lengths.query[walk.begin() + i];
          put(to, (walk.begin() + i) * width + column, over_powers(sum, h, powers, shift));
        }
    }
  });
}

template <int D, typename T, typename From>
void sum_by_order(const Parallel& parallel, const KernelSums<D, From>& in, const double* box) {
  KernelProblem<D, T> problem(parallel, in, box);
  int by_h = static_cast<int>(in.by_h), shift = static_cast<int>(in.sum_powers);
  if (in.order() == 0) sum_all<D, T, 0>(parallel, problem, by_h, shift, in.sum);
  if (in.order() == 1) sum_all<D, T, 1>(parallel, problem, by_h, shift, in.sum);
  if (in.order() == 2) sum_all<D, T, 2>(parallel, problem, by_h, shift, in.sum);
  for (int64_t place = in.queries.num() * in.sum.dims[1]; place < in.sum.elements(); ++place) put(in.sum, place, 0);
}

template <int D, typename T>
void kernel_sums(const Parallel& parallel, const KernelSums<D, T>& in) {
  double box[D];
  in.box.read(box);
  if (needs_wide(in, box)) {
    sum_by_order<D, double>(parallel, in, box);
  } else {
    sum_by_order<D, T>(parallel, in, box);
  }
}

}  // namespace

JZTREE_KERNEL(kernel_sums, KernelSums);

}  // namespace jztree
