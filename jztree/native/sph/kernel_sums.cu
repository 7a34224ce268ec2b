// A warp takes a group of queries, a leaf of their hierarchy, 32 at a time, one per lane. It walks the tree
// (kernel_walk.cuh) for up to 16 sums of each query at once, or for all sums of a column if these are more. No data of
// pairs is stored.
//
// Only the GPU knows whether float32 can square distances as small as the smoothing lengths. So for float32 positions,
// the host launches the work in float32 and in float64, and one launch ends at once.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "common/cuda/context.cuh"
#include "kernel_sums.h"
#include "kernel_walk.cuh"
#include "within/query_tiles.cuh"

namespace jztree {
namespace {

constexpr int64_t most_sums = 16;

__device__ inline void put_sum(const Buffer& to, int64_t place, double sum) {
  if (to.type == XLA_FFI_DataType_F32) {
    static_cast<float*>(to.data)[place] = static_cast<float>(sum);
  } else {
    static_cast<double*>(to.data)[place] = sum;
  }
}

template <int D, typename T, typename From, int Order>
__global__ void sum_kernels(const __grid_constant__ KernelProblem<D, T, From> in) {
  using Walk = KernelWalk<D, T, From, Order>;
  if ((*in.narrow != 0) != std::is_same_v<T, From>) return;
  each_query_tile(in, Walk::shared_bytes(in.sources.planes, in.sums()),
                  [&](const auto& setup, unsigned char* shared, int64_t tile, int64_t end) {
                    Walk walk(in, setup, shared);
                    walk.run(tile, end);
                    int64_t query = tile + lane_index(), first = (query * in.columns + in.first_column) * in.outer;
                    for (int i = 0; query < end && i < in.sums(); ++i) put_sum(in.sum, first + i, walk.sum(i));
                  });
}

template <int D, typename T, typename From, int Order>
void sum_columns(Queue& queue, KernelProblem<D, T, From> problem) {
  int64_t at_once = std::max<int64_t>(1, most_sums / problem.outer);
  for (; problem.first_column < problem.columns; problem.first_column += at_once) {
    problem.at_work = static_cast<int>(std::min(at_once, problem.columns - problem.first_column));
    int bytes = KernelWalk<D, T, From, Order>::shared_bytes(problem.sources.planes, problem.sums());
    launch_tiles(queue, problem, bytes, sum_kernels<D, T, From, Order>);
  }
}

template <int D, typename T, typename From>
void sum_by_order(Queue& queue, const KernelProblem<D, T, From>& problem, int64_t order) {
  if (order == 0) sum_columns<D, T, From, 0>(queue, problem);
  if (order == 1) sum_columns<D, T, From, 1>(queue, problem);
  if (order == 2) sum_columns<D, T, From, 2>(queue, problem);
}

template <int D, typename T>
void kernel_sums(Queue& queue, const KernelSums<D, T>& in) {
  KernelSets<D, T> sets = sets_of(queue, in);
  auto* wrapped = any_wrapped(queue, in.box, sets.sources, sets.queries);
  auto* narrow = queue.scratch<int32_t>(1);
  sets.narrow = narrow;
  queue.fill_bytes(narrow, 1, 1);
  queue.fill_bytes(static_cast<unsigned char*>(in.sum.data), 0, in.sum.bytes());
  auto problem = in_precision<T>(queue, in, sets, wrapped);
  if constexpr (std::is_same_v<T, float>) {
    if (sets.form != KernelForm::scatter)
      queue.launch_over(in.query_h.count, look_for_small<KernelSetup<D, T>>, in.query_h, in.queries.num, problem.setup,
                        narrow);
    if (sets.form != KernelForm::gather)
      queue.launch_over(in.source_h.count, look_for_small<KernelSetup<D, T>>, in.source_h, in.sources.num,
                        problem.setup, narrow);
    sum_by_order(queue, in_precision<double>(queue, in, sets, wrapped), in.order());
  }
  sum_by_order(queue, problem, in.order());
}

}  // namespace

JZTREE_KERNEL(kernel_sums, KernelSums);

}  // namespace jztree
