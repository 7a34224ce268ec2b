#include <cstdint>

#include "block_boxes.cuh"
#include "common/cuda/compact.cuh"
#include "common/cuda/context.cuh"
#include "common/cuda/primitives.cuh"
#include "common/morton.h"
#include "select_ghosts.h"

namespace jztree {
namespace {

// A box around all boxes of a rank that need particles. limit2: the largest squared radius, negative if no box needs
// any.
template <int D, typename T>
struct Demand {
  Surrounding<D, T> box;
  double limit2;
};

template <int D, typename T>
struct GhostSelection {
  Lengths box;
  const T* pos;
  Count num;
  const int32_t* splits;  // of the blocks of rows to search
  int64_t blocks;
  Boxes<D, T> wanted;
  const int32_t* wanted_splits;  // first box of each rank
  const T* radius;               // of each received box; negative: it needs no particles
  const int32_t* me;
  int64_t ranks, tiles;
  Demand<D, T>* demands;
  int64_t* places;  // [rank, tile]: number of wanted rows; later the position of the first one in the output

  __device__ int64_t first() const { return splits[0] < 0 ? 0 : splits[0]; }
  __device__ int64_t last() const { return smaller<int64_t>(splits[blocks], num()); }

  // The first box of a rank, clipped to the existing boxes for any splits.
  __device__ int64_t boxes_of(int64_t rank) const {
    int64_t first = wanted_splits[rank];
    return first < 0 ? 0 : smaller<int64_t>(first, wanted.count);
  }

  __device__ double limit2(const Space<D>& space, int64_t i) const {
    double limit = space.enlarged(radius[i]);
    return limit * limit;
  }

  __device__ void wrapped(int64_t row, T* x) const {
    for (int d = 0; d < D; ++d) x[d] = wrap(pos[row * D + d], box[d]);
  }
};

// One warp per rank. The rank itself needs nothing.
template <int D, typename T>
__global__ void find_demands(GhostSelection<D, T> selection) {
  int64_t rank = thread_index() / warp_size;
  if (rank >= selection.ranks) return;
  Space<D> space = space_in<D, T>(selection.box);
  Demand<D, T> demand{{}, -1};
  if (rank != selection.me[0])
    for (int64_t i = selection.boxes_of(rank) + lane_index(); i < selection.boxes_of(rank + 1); i += warp_size) {
      if (!(selection.radius[i] >= 0) || selection.wanted.empty(i)) continue;
      demand.box.include(selection.wanted.low(i), selection.wanted.high(i));
      double limit2 = selection.limit2(space, i);
      demand.limit2 = limit2 > demand.limit2 ? limit2 : demand.limit2;
    }
  demand.box.unite_warp();
  demand.limit2 = warp_max(demand.limit2);
  if (lane_index() == 0) selection.demands[rank] = demand;
}

// A tile of rows, searched by one block.
template <int D, typename T>
struct GhostTile {
  const GhostSelection<D, T>& selection;
  Space<D> space;
  int64_t tile, first, last;  // rows
  Surrounding<D, T> box;

  __device__ explicit GhostTile(const GhostSelection<D, T>& from)
      : selection(from), space(space_in<D, T>(from.box)), tile(blockIdx.x) {
    first = larger<int64_t>(tile * compact_rows, selection.first());
    last = smaller<int64_t>((tile + 1) * compact_rows, selection.last());
    for (int item = 0; item < compact_items; ++item) {
      if (!holds(compact_row(tile, item))) continue;
      T x[D];
      selection.wrapped(compact_row(tile, item), x);
      box.include(x, x);
    }
    box.template unite_block<compact_threads>();
  }

  __device__ bool holds(int64_t row) const { return row >= first && row < last; }

  __device__ bool may_serve(int64_t rank) const {
    const Demand<D, T>& demand = selection.demands[rank];
    return demand.limit2 >= 0 && space.gap2(box.low, box.high, demand.box.low, demand.box.high) <= demand.limit2;
  }

  __device__ bool is_wanted(int64_t row, const BlockList<compact_threads>& boxes) const {
    T x[D];
    selection.wrapped(row, x);
    for (int c = 0; c < boxes.count; ++c) {
      int64_t i = boxes.entries[c];
      if (space.gap2(x, x, selection.wanted.low(i), selection.wanted.high(i)) <= selection.limit2(space, i))
        return true;
    }
    return false;
  }

  // The rows of this thread that a rank wants, one bit per item. All threads of the block take part.
  __device__ unsigned wanted_by(int64_t rank, BlockList<compact_threads>& near) const {
    unsigned items = 0;
    int64_t end = selection.boxes_of(rank + 1);
    for (int64_t begin = selection.boxes_of(rank); begin < end; begin += compact_threads) {
      int64_t i = begin + threadIdx.x;
      near.clear();
      if (i < end && selection.radius[i] >= 0 && !selection.wanted.empty(i) &&
          space.gap2(box.low, box.high, selection.wanted.low(i), selection.wanted.high(i)) <=
              selection.limit2(space, i))
        near.add(i);
      near.complete();
      for (int item = 0; near.count > 0 && item < compact_items; ++item) {
        int64_t row = compact_row(tile, item);
        if (!(items >> item & 1) && holds(row) && is_wanted(row, near)) items |= 1u << item;
      }
    }
    return items;
  }
};

// Call work(rank) with all threads of a block for the ranks that pass the test. Each thread tests a different rank.
template <typename Test, typename Work>
__device__ void each_rank(int64_t ranks, const Test& test, const Work& work) {
  __shared__ BlockList<compact_threads> passed;
  for (int64_t first = 0; first < ranks; first += compact_threads) {
    passed.clear();
    if (first + threadIdx.x < ranks && test(first + threadIdx.x)) passed.add(first + threadIdx.x);
    passed.complete();
    for (int i = 0; i < passed.count; ++i) work(int64_t{passed.entries[i]});
  }
}

// Count the rows of a tile that each rank gets. All counts are 0 before.
template <int D, typename T>
__global__ void count_ghosts(GhostSelection<D, T> selection) {
  __shared__ BlockList<compact_threads> near;
  GhostTile<D, T> tile(selection);
  int64_t* counts = selection.places + blockIdx.x;
  if (threadIdx.x == 0) {
    int64_t own_rows = smaller<int64_t>(selection.num() - tile.tile * compact_rows, compact_rows), me = selection.me[0];
    if (own_rows > 0 && me >= 0 && me < selection.ranks) counts[me * selection.tiles] = own_rows;
  }
  if (tile.box.empty()) return;
  each_rank(
      selection.ranks, [&](int64_t rank) { return tile.may_serve(rank); },
      [&](int64_t rank) {
        int places[compact_items];
        int total = compact_places(tile.wanted_by(rank, near), places);
        if (threadIdx.x == 0) counts[rank * selection.tiles] = total;
      });
}

// Repeat the tests of the tile for the ranks that need some of its rows, but not all.
template <int D, typename T>
__global__ void list_ghosts(GhostSelection<D, T> selection, int64_t room, int32_t* order) {
  __shared__ BlockList<compact_threads> near;
  GhostTile<D, T> tile(selection);
  const int64_t* starts = selection.places + blockIdx.x;
  each_rank(
      selection.ranks,
      [&](int64_t rank) { return starts[rank * selection.tiles] < starts[rank * selection.tiles + 1]; },
      [&](int64_t rank) {
        unsigned items = 0;
        int64_t start = starts[rank * selection.tiles], count = starts[rank * selection.tiles + 1] - start;
        if (rank == selection.me[0] || count == tile.last - tile.first) {
          int64_t first = rank == selection.me[0] ? 0 : tile.first;
          int64_t last = rank == selection.me[0] ? selection.num() : tile.last;
          for (int item = 0; item < compact_items; ++item) {
            int64_t row = compact_row(tile.tile, item);
            if (row >= first && row < last) items |= 1u << item;
          }
        } else {
          items = tile.wanted_by(rank, near);
        }
        int places[compact_items];
        compact_places(items, places);
        for (int item = 0; item < compact_items; ++item)
          if ((items >> item & 1) && start + places[item] < room)
            order[start + places[item]] = static_cast<int32_t>(compact_row(tile.tile, item));
      });
}

// starts: for all ranks and tiles, followed by the end.
__global__ void total_ghosts(const int64_t* starts, int64_t ranks, int64_t tiles, int32_t* counts) {
  int64_t i = thread_index();
  if (i < ranks) counts[i] = static_cast<int32_t>(starts[(i + 1) * tiles] - starts[i * tiles]);
}

template <int D, typename T>
void select_ghosts(Queue& queue, const SelectGhosts<D, T>& in) {
  int64_t tiles = compact_tiles(in.pos.rows()), room = in.order.rows(), ranks = in.wanted.ranks();
  GhostSelection<D, T> selection{in.box,
                                 in.pos,
                                 in.num,
                                 in.blocks.splits,
                                 in.blocks.count,
                                 in.wanted,
                                 in.wanted.splits,
                                 in.radius,
                                 in.rank,
                                 ranks,
                                 tiles,
                                 queue.scratch<Demand<D, T>>(ranks),
                                 queue.scratch<int64_t>(ranks * tiles + 1)};
  queue.fill_bytes(selection.places, 0, ranks * tiles + 1);
  queue.launch_warps(ranks, find_demands<D, T>, selection);
  queue.launch(tiles, compact_threads, 0, count_ghosts<D, T>, selection);
  exclusive_sum(queue, selection.places, selection.places, ranks * tiles + 1);
  queue.launch(tiles, compact_threads, 0, list_ghosts<D, T>, selection, room, in.order);
  queue.launch_over(ranks, total_ghosts, selection.places, ranks, tiles, in.counts);
}

}  // namespace

JZTREE_KERNEL(select_ghosts, SelectGhosts);

}  // namespace jztree
