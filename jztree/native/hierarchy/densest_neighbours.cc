#include "densest_neighbours.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "common/cpu/atomics.h"
#include "common/cpu/context.h"

namespace jztree {
namespace {

constexpr int64_t grain = 1 << 12;

void densest_neighbours(const Parallel& parallel, const DensestNeighbours& in) {
  const int64_t num = in.graph.num();
  Scratch<std::atomic<uint64_t>> densest(num);
  auto each_row = [&](int64_t count, const auto& work) {
    parallel.blocks(count, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) work(row);
    });
  };
  each_row(num, [&](int64_t row) {
    uint64_t best = in.particle(row);
    in.graph.each_near(row, [&](int32_t neighbour) { best = std::min(best, in.particle(neighbour)); });
    densest[row].store(best, std::memory_order_relaxed);
  });
  // Particles whose list a row is not in.
  each_row(num, [&](int64_t row) {
    const uint64_t particle = in.particle(row);
    in.graph.each_near(row, [&](int32_t neighbour) { lower(densest[neighbour], particle); });
  });
  each_row(in.graph.rows, [&](int64_t row) {
    const uint64_t best = row < num ? densest[row].load(std::memory_order_relaxed) : static_cast<uint64_t>(row);
    in.densest[row] = in.row_of(best);
  });
}

}  // namespace

JZTREE_PLAIN_KERNEL(densest_neighbours, DensestNeighbours);

}  // namespace jztree
