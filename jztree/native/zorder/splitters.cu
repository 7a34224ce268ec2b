// Searches wait for memory, so the kernel runs a large number at the same time: each thread searches for the end of one
// part. From the second step on, each search covers only few rows.

#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/keys.cuh"
#include "common/cuda/warp_search.cuh"
#include "splitters.h"

namespace jztree {
namespace {

template <int D, typename T>
__global__ void count_rows(CountParts<D, T> in, const KeyGrid<D>* grid) {
  int64_t place = thread_index();
  if (place >= in.room) return;
  Step step(in.step, OrderWords<D>::count(*grid));
  int64_t group = place >> step.bits, part = place - (group << step.bits);
  int64_t s = first_of_group(in.groups, in.number, group + 1);
  if (s == in.number) {
    in.counts[place] = 0;
    return;
  }
  RowRange range(in.rows + 2 * s, in.n);
  int64_t end = range.last;
  if (part < step.parts() - 1) {
    uint64_t bound = Splitter<D>(*grid, in.splitters, s).words[step.word];
    bound += static_cast<uint64_t>(part + 1) << step.shift;
    end = partition_point(range.first, range.last, [&](int64_t row) {
      return OrderWords<D>::at(*grid, in.pos + row * grid->dims, step.word) < bound;
    });
  }
  in.counts[place] = static_cast<int32_t>(end - range.first);
}

__global__ void choose_part(ChooseParts in) {
  if (thread_index() < in.number) in.choose(thread_index());
}

template <int D, typename T>
__global__ void find_rows(const T* pos, Count num, const KeyGrid<D>* grid, const uint32_t* splitters, int64_t number,
                          int32_t* below) {
  int64_t s = thread_index() / warp_size;
  if (s >= number) return;
  Splitter<D> splitter(*grid, splitters, s);
  int64_t row = warp_search(0, num(), [&](int64_t middle) {
    return OrderWords<D>::before(*grid, pos + middle * grid->dims, splitter.words);
  });
  if (lane_index() == 0) below[s] = static_cast<int32_t>(row);
}

template <int D, typename T>
void count_parts(Queue& queue, const CountParts<D, T>& in) {
  const KeyGrid<D>* grid = device_grid(queue, in.keys);
  queue.launch_over(in.room, count_rows<D, T>, in, grid);
}

void choose_parts(Queue& queue, const ChooseParts& in) { queue.launch_over(in.number, choose_part, in); }

template <int D, typename T>
void key_positions(Queue& queue, const KeyPositions<D, T>& in) {
  const KeyGrid<D>* grid = device_grid(queue, in.keys);
  queue.launch_warps(in.number(), find_rows<D, T>, in.pos.data, in.num, grid, in.splitters.data, in.number(), in.below);
}

}  // namespace

JZTREE_KERNEL(count_parts, CountParts);
JZTREE_PLAIN_KERNEL(choose_parts, ChooseParts);
JZTREE_KERNEL(key_positions, KeyPositions);

}  // namespace jztree
