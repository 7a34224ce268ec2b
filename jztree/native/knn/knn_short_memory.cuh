// The size of the blocks of the search for k up to 128 (knn_short.cuh), and their shared memory.
#pragma once

#include <cstdint>

#include "knn_lists.cuh"
#include "knn_walk.cuh"

namespace jztree {

// A block has one warp. So its registers and its shared memory are free for another warp as soon as it is done, and no
// part of a multiprocessor stays unused because it is smaller than a larger block.
constexpr int short_search_threads = 32;
// The number of blocks that must fit on a multiprocessor. It limits the registers. More blocks would spill registers in
// the innermost loops, which took up to 1.6 times as long on an H100. tests/native/test_knn_work.py checks them.
template <int W, int K, typename T, bool Keyed>
constexpr int short_search_blocks = (W > 4 || K > (Keyed ? 32 : 16) ? 12 : 16) - (sizeof(T) > sizeof(float) ? 4 : 0);

// When a lane has collected more candidates than the list's `patience`, all lanes absorb a batch. A larger value needs
// fewer batches, but radii stay wide for longer. Of 1, 1.5, 2 and 3 batches, 1.5 gave the fewest instructions (counted
// with the emulator on 100,000 uniform points, k = 8 and 16).

// Candidates of one warp that are not yet in the lists: columns of 32, one candidate per lane, with space for one more
// block.
template <typename List>
constexpr int collected_columns = List::patience + List::block;

// The staged coordinates of a row. In global memory, the label is `has_rests` if the position has a rounding error
// (Staging::find_rests), otherwise 0; in the tile, it is the label of the list.
template <int W, typename T>
struct alignas(16) StagedRow {
  uint32_t label;
  T x[W];
};
constexpr uint32_t has_rests = 1;

// The boxes of a group, for the test of rows. Up to the distance `straight` from its centre, a row is nearest straight
// to all queries of a box.
template <int W, typename T>
struct alignas(16) RowBoxes {
  T centre[2][W], half[2][W], straight[2][W];
};

// The rows that a search tests before its walk.
struct alignas(8) Seeds {
  uint32_t first, count;

  __device__ __forceinline__ bool has(uint32_t row) const { return row - first < count; }
};

// Space for the rest of a block and for the rows of one leaf after it.
constexpr int tile_points = 2 * warp_size;

// Values that all lanes share. In registers, they would leave space for fewer warps.
template <int W, typename From, typename T>
struct alignas(16) ShortFrame {
  Group<W, 2, T> group;
  RowBoxes<W, T> boxes;
  Seeds seeds;
  Staging<W, From, T> staging;
};

// Shared memory of one warp, in bytes.
template <int W, typename List, typename T>
constexpr int64_t short_search_bytes(int planes) {
  int64_t bytes = static_cast<int64_t>(sizeof(ShortFrame<W, T, T>)) +
                  tile_points * static_cast<int64_t>(sizeof(StagedRow<W, T>)) +
                  warp_size * collected_columns<List> * static_cast<int64_t>(sizeof(typename List::Item)) + List::bytes;
  return (bytes + stack_entries(planes) * static_cast<int64_t>(sizeof(StackEntry<T>)) + 15) / 16 * 16;
}

}  // namespace jztree
