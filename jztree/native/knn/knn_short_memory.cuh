// The size of the blocks of a search with lists in registers (knn_short.cuh), and their shared memory.
#pragma once

#include <cstdint>

#include "knn_lists.cuh"
#include "knn_walk.cuh"

namespace jztree {

// A block has one warp. So its registers and its shared memory are free for another warp as soon as it is done, and no
// part of a multiprocessor stays unused because it is smaller than a larger block.
constexpr int short_search_threads = 32;
// The number of blocks that must fit on a multiprocessor. It limits the registers. Without it, the compiler uses fewer
// registers than the kernel needs and spills the rest to memory. docs/gpu.md has the results; tests/test_knn_work.py
// checks them.
template <int W, int K, typename T>
constexpr int short_search_blocks = K > 16 || W > 4 || sizeof(T) > sizeof(float) ? 8
                                    : K > 4                                      ? 12
                                                                                 : 16;

// When a lane has collected more candidates than this, all lanes absorb a batch. A larger value needs fewer batches,
// but radii stay wide for longer. Of 1, 1.5, 2 and 3 batches, 1.5 gave the fewest instructions (counted with the
// emulator on 100,000 uniform points, k = 8 and 16).
template <int K, typename T>
constexpr int patience = RegisterList<K, T>::batch * 3 / 2;

// Candidates of one warp that are not yet in the lists: columns of 32, one candidate per lane, with space for one more
// block.
template <int K, typename T>
constexpr int collected_columns =
    patience<K, T> + RegisterList<K, T>::batch > K ? patience<K, T> + RegisterList<K, T>::batch : K;

template <int W, typename T>
struct alignas(16) TilePoint {
  uint32_t row_plus_one;
  T x[W];
};

// Space for the rest of a block and for the rows of one leaf after it.
constexpr int tile_points = 2 * warp_size;

// Shared memory of one warp, in bytes.
template <int W, int K, typename T>
constexpr int64_t short_search_bytes(int planes) {
  int64_t bytes = tile_points * static_cast<int64_t>(sizeof(TilePoint<W, T>)) +
                  warp_size * collected_columns<K, T> * static_cast<int64_t>(sizeof(Candidate<T>));
  return (bytes + stack_entries(planes) * static_cast<int64_t>(sizeof(StackEntry<T>)) + 15) / 16 * 16;
}

}  // namespace jztree
