// Two walks (image_walk.cuh): the first counts the pairs of every query, which tells where each list begins; the second
// writes them. Each lane writes the list of its query.

#include <cstdint>
#include <limits>

#include "common/cuda/context.cuh"
#include "common/cuda/primitives.cuh"
#include "image_walk.cuh"
#include "neighbours_within.h"
#include "pairs_within.h"

namespace jztree {
namespace {

constexpr int image_threads = 64;
constexpr int image_warps = image_threads / warp_size;

template <typename T>
struct PairArrays {
  int64_t* starts;  // (q + 1,), of output rows; at first, how long each list is
  int32_t *index, *shift;
  T *vector, *distance;
  int64_t room, q;

  __device__ int64_t total() const { return starts[q]; }
};

// work(walk, tile, end): for each group of queries, by the warp that it belongs to.
template <int D, typename T, typename Work>
__device__ void each_group(const ImageProblem<D, T>& in, const ImageSetup<D, T>& setup, const Work& work) {
  using Walk = ImageWalk<D, T>;
  int64_t leaf = thread_index() / warp_size;
  if (leaf >= in.queries.leaves()) return;
  Walk walk(in, setup,
            dynamic_shared() + static_cast<int>(threadIdx.x) / warp_size * Walk::shared_bytes(in.sources.planes));
  int64_t end = in.queries.leaf_row(leaf + 1);
  for (int64_t tile = in.queries.leaf_row(leaf); tile < end; tile += warp_size) work(walk, tile, end);
}

template <int D, typename T>
__global__ void count_pairs(const __grid_constant__ ImageProblem<D, T> in, const __grid_constant__ PairArrays<T> out) {
  alignas(16) __shared__ unsigned char memory[sizeof(ImageSetup<D, T>)];
  const ImageSetup<D, T>& setup = share_setup(in.setup, memory);
  each_group(in, setup, [&](auto& walk, int64_t tile, int64_t end) {
    int64_t number = 0, query = tile + lane_index();
    walk.run(tile, end, [&](uint32_t) { ++number; });
    if (query < end) out.starts[in.output_row(query)] = number;
  });
}

template <int D, typename T>
__global__ void write_pairs(const __grid_constant__ ImageProblem<D, T> in, const __grid_constant__ PairArrays<T> out) {
  alignas(16) __shared__ unsigned char memory[sizeof(ImageSetup<D, T>)];
  const ImageSetup<D, T>& setup = share_setup(in.setup, memory);
  if (out.total() > out.room) return;
  each_group(in, setup, [&](auto& walk, int64_t tile, int64_t end) {
    int64_t query = tile + lane_index(), place = query < end ? out.starts[in.output_row(query)] : 0;
    walk.run(tile, end, [&](uint32_t row) {
      const T *a = in.queries.pos + query * D, *b = in.sources.pos + static_cast<int64_t>(row) * D;
      double difference[D], sum = 0;
      walk.apart(row, difference);
      for (int d = 0; d < D; ++d) {
        double scaled = difference[d] * setup.rule.factor;
        sum += scaled * scaled;
        out.vector[place * D + d] = static_cast<T>(-difference[d]);
        out.shift[place * D + d] = image_shift(a[d], b[d], difference[d], setup.rule.period[d]);
      }
      out.index[place] = static_cast<int32_t>(in.source_name(row));
      out.distance[place++] = length_of<T>(sum, setup.rule.factor);
    });
  });
}

// total: upper and lower 31 bits.
template <typename T>
__global__ void write_pair_splits(PairArrays<T> out, int32_t* splits, int32_t* total) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  int64_t row = thread_index();
  if (row > out.q) return;
  splits[row] = static_cast<int32_t>(out.starts[row] < most ? out.starts[row] : most);
  if (row < out.q) return;
  total[0] = static_cast<int32_t>(out.total() >> 31);
  total[1] = static_cast<int32_t>(out.total() & most);
}

template <int D, typename T>
__global__ void fill_pairs(PairArrays<T> out) {
  int64_t place = thread_index();
  if (place >= out.room || (out.total() <= out.room && place < out.total())) return;
  out.index[place] = -1;
  out.distance[place] = std::numeric_limits<T>::infinity();
  for (int d = 0; d < D; ++d) {
    out.shift[place * D + d] = 0;
    out.vector[place * D + d] = 0;
  }
}

template <int D, typename T>
void pairs_within(Queue& queue, const PairsWithin<D, T>& in) {
  auto* setup = queue.scratch<ImageSetup<D, T>>(1);
  auto* within = queue.scratch<Within<T>>(in.radius.count);
  ImageProblem<D, T> problem{on_device(in.sources),
                             on_device(in.queries),
                             in.source_names,
                             in.query_rows,
                             in.query_names,
                             setup,
                             within,
                             in.radius,
                             in.same,
                             in.half};
  PairArrays<T> pairs{
      queue.scratch<int64_t>(in.q() + 1), in.index, in.shift, in.vector, in.distance, in.room(), in.q()};
  queue.launch(1, warp_size, 0, set_up_images<D, T>, problem.sources, problem.queries, in.box, setup);
  queue.launch_over(in.radius.count, make_image_radii<D, T>, in.radius, setup, within);
  int64_t blocks = (problem.queries.leaves() + image_warps - 1) / image_warps;
  auto shared = static_cast<size_t>(image_warps * ImageWalk<D, T>::shared_bytes(problem.sources.planes));
  queue.fill_bytes(pairs.starts, 0, in.q() + 1);
  queue.launch(blocks, image_threads, shared, count_pairs<D, T>, problem, pairs);
  exclusive_sum(queue, pairs.starts, pairs.starts, in.q() + 1);
  queue.launch_over(in.q() + 1, write_pair_splits<T>, pairs, in.splits, in.total);
  queue.launch(blocks, image_threads, shared, write_pairs<D, T>, problem, pairs);
  queue.launch_over(in.room(), fill_pairs<D, T>, pairs);
}

}  // namespace

JZTREE_KERNEL(pairs_within, PairsWithin);

}  // namespace jztree
