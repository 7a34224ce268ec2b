// Two walks (image_walk.cuh): the first counts the pairs of every query, which gives the start of each list; the second
// writes them. Each lane writes the list of its query.

#include <cstdint>
#include <limits>

#include "common/cuda/context.cuh"
#include "image_walk.cuh"
#include "pairs_within.h"
#include "within/list_starts.cuh"
#include "within/query_tiles.cuh"

namespace jztree {
namespace {

template <typename T>
struct PairArrays : ListStarts {
  int32_t *query, *index, *shift;  // shifts, vectors and distances are null if not requested
  T *vector, *distance;
};

template <int D, typename T>
__global__ void count_pairs(const __grid_constant__ ImageProblem<D, T> in, ListStarts out) {
  using Walk = ImageWalk<D, T>;
  each_query_tile(in, Walk::shared_bytes(in.sources.planes),
                  [&](const auto& setup, unsigned char* shared, int64_t tile, int64_t end) {
                    int64_t number = 0, query = tile + lane_index();
                    Walk(in, setup, shared).run(tile, end, [&](uint32_t) { ++number; });
                    if (query < end) out.starts[in.output_row(query)] = number;
                  });
}

// walk: positioned at the pair of this query and the source in `row`.
template <int D, typename T>
__device__ void write_pair(const ImageProblem<D, T>& in, const ImageSetup<D, T>& setup, const ImageWalk<D, T>& walk,
                           int64_t query, uint32_t row, const PairArrays<T>& out, int64_t place) {
  out.query[place] = static_cast<int32_t>(in.query_name(query));
  out.index[place] = static_cast<int32_t>(in.source_name(row));
  if (!out.shift && !out.vector) return;
  const T *a = in.queries.pos + query * D, *b = in.sources.pos + static_cast<int64_t>(row) * D;
  double difference[D], sum = 0;
  walk.displacement(row, difference);
  for (int d = 0; d < D; ++d) {
    double scaled = difference[d] * setup.rule.factor;
    sum += scaled * scaled;
    if (out.vector) out.vector[place * D + d] = unsigned_zero(static_cast<T>(-difference[d]));
    if (out.shift) out.shift[place * D + d] = image_shift(a[d], b[d], difference[d], setup.rule.period[d]);
  }
  if (out.vector) out.distance[place] = setup.rule.length(sum);
}

template <int D, typename T>
__global__ void write_pairs(const __grid_constant__ ImageProblem<D, T> in, const __grid_constant__ PairArrays<T> out) {
  using Walk = ImageWalk<D, T>;
  if (!out.fit()) return;
  each_query_tile(in, Walk::shared_bytes(in.sources.planes),
                  [&](const auto& setup, unsigned char* shared, int64_t tile, int64_t end) {
                    int64_t query = tile + lane_index();
                    int64_t place = query < end ? out.starts[in.output_row(query)] : 0;
                    Walk walk(in, setup, shared);
                    walk.run(tile, end, [&](uint32_t row) { write_pair(in, setup, walk, query, row, out, place++); });
                  });
}

template <int D, typename T>
__global__ void fill_pairs(PairArrays<T> out) {
  int64_t place = thread_index();
  if (place >= out.room || (out.fit() && place < out.total())) return;
  out.query[place] = -1;
  out.index[place] = -1;
  if (out.vector) out.distance[place] = std::numeric_limits<T>::infinity();
  for (int d = 0; d < D; ++d) {
    if (out.shift) out.shift[place * D + d] = 0;
    if (out.vector) out.vector[place * D + d] = 0;
  }
}

template <int D, typename T>
ImageProblem<D, T> set_up(Queue& queue, const PairsWithin<D, T>& in) {
  auto* within = queue.scratch<Within<T>>(in.radius.count);
  ImageProblem<D, T> problem{on_device(in.sources),
                             on_device(in.queries),
                             in.sources.rows,
                             in.queries.rows,
                             in.query_names,
                             nullptr,
                             within,
                             in.radius,
                             in.one_set,
                             in.half};
  problem.setup = make_setup<ImageSetup<D, T>>(queue, in.box, problem.sources, problem.queries);
  queue.launch_over(in.radius.count, make_image_radii<D, T>, in.radius, problem.setup, within);
  return problem;
}

template <int D, typename T>
void pairs_within(Queue& queue, const PairsWithin<D, T>& in) {
  ImageProblem<D, T> problem = set_up(queue, in);
  int bytes = ImageWalk<D, T>::shared_bytes(problem.sources.planes);
  ListStarts starts = lay_out_lists(
      queue, in, [&](const ListStarts& out) { launch_tiles(queue, problem, bytes, count_pairs<D, T>, out); });
  PairArrays<T> pairs{starts, in.query, in.index, in.shift, in.vector, in.distance};
  launch_tiles(queue, problem, bytes, write_pairs<D, T>, pairs);
  if (in.padded) queue.launch_over(in.room(), fill_pairs<D, T>, pairs);
}

}  // namespace

JZTREE_KERNEL(pairs_within, PairsWithin);

}  // namespace jztree
