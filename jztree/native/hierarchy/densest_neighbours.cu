#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/loads.cuh"
#include "densest_neighbours.h"

namespace jztree {
namespace {

// best: [row], the densest neighbour, with its rank.
__global__ void begin_densest(DensestNeighbours in, uint64_t* best) {
  const int64_t row = thread_index();
  if (row < in.graph.rows) best[row] = in.particle(row);
}

__global__ void offer_particles(DensestNeighbours in, uint64_t* best) {
  const int64_t row = thread_index();
  if (row >= in.graph.num()) return;
  const uint64_t particle = in.particle(row);
  uint64_t densest = particle;
  in.graph.each_near(row, [&](int32_t neighbour) {
    const uint64_t second = in.particle(neighbour);
    densest = second < densest ? second : densest;
    if (particle < second) lower(best + neighbour, particle);
  });
  lower(best + row, densest);
}

__global__ void write_densest(DensestNeighbours in, const uint64_t* best) {
  const int64_t row = thread_index();
  if (row < in.graph.rows) in.densest[row] = in.row_of(best[row]);
}

void densest_neighbours(Queue& queue, const DensestNeighbours& in) {
  const int64_t rows = in.graph.rows;
  auto* best = queue.scratch<uint64_t>(rows);
  queue.launch_over(rows, begin_densest, in, best);
  queue.launch_over(rows, offer_particles, in, best);
  queue.launch_over(rows, write_densest, in, best);
}

}  // namespace

JZTREE_PLAIN_KERNEL(densest_neighbours, DensestNeighbours);

}  // namespace jztree
