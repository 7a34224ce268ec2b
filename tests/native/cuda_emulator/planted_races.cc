// Kernels with and without the synchronisation of their threads, to test that the watching emulator detects races.

#include <string_view>

#include "common/cuda/context.cuh"
#include "common/cuda/loads.cuh"
#include "common/cuda/warp.cuh"
#include "common/cuda/wrapped.cuh"
#include "common/handler.h"

namespace jztree {
namespace {

bool plain_stores = false;

void store_as_planted(int32_t* at, int32_t value) {
  if (plain_stores) {
    *at = value;
  } else {
    store_relaxed(at, value);
  }
}

}  // namespace
}  // namespace jztree

// The library's own code, with other stores: those that shorten paths, and those of equal values by several threads.
#define UnionFind PlantedUnionFind
#define look_for_small planted_look_for_small
#define store_relaxed store_as_planted
#include "fof/union_find.cuh"
#include "sph/kernel_problem.cuh"
#undef UnionFind
#undef look_for_small
#undef store_relaxed

namespace jztree {
namespace {

constexpr int threads = 64;

__global__ void turn_around(int32_t* out, bool ordered) {
  __shared__ int32_t tile[threads];
  tile[threadIdx.x] = static_cast<int32_t>(threadIdx.x);
  if (ordered) __syncthreads();
  out[threadIdx.x] = tile[threads - 1 - threadIdx.x];
}

// Lanes of each of two warps, which need no barrier of the block. A shuffle does not order memory accesses.
__global__ void turn_warps_around(int32_t* out, bool ordered) {
  __shared__ int32_t tile[threads];
  int warp = static_cast<int>(threadIdx.x) / warp_size * warp_size;
  tile[threadIdx.x] = static_cast<int32_t>(threadIdx.x);
  int other = __shfl_xor_sync(all_lanes, warp + lane_index(), warp_size - 1);
  if (ordered) __syncwarp();
  out[threadIdx.x] = tile[other];
}

// The lanes of each half warp meet separately.
__global__ void turn_halves_around(int32_t* out, bool ordered) {
  __shared__ int32_t tile[threads];
  constexpr int half = warp_size / 2;
  unsigned mask = lane_index() < half ? 0x0000ffffu : 0xffff0000u;
  tile[threadIdx.x] = static_cast<int32_t>(threadIdx.x);
  __syncwarp(ordered ? mask : 1u << lane_index());
  out[threadIdx.x] = tile[threadIdx.x ^ (half - 1)];
}

// Joins every row to the previous one, the last rows first, so that the path from the last row to its root is long.
__global__ void join_rows(PlantedUnionFind sets) {
  auto last = static_cast<int32_t>(gridDim.x) - 1, row = last - static_cast<int32_t>(blockIdx.x);
  if (row > 0) sets.unite(row, row - 1);
  sets.find(last);
}

// One block reads the values that another block writes.
__global__ void pass_on(int32_t* out, bool ordered) {
  auto block = static_cast<int32_t>(blockIdx.x);
  if (ordered) {
    out[block] = block;
  } else if (block > 0) {
    out[block] = out[block - 1] + 1;
  }
}

// The part of KernelSetup that the search for small lengths uses.
struct PlantedScale {
  float factor;
};
struct PlantedSetup {
  PlantedScale scale;
};
// All lengths of the test are smaller.
double least_narrow_length(const PlantedScale&) { return 0x1p-40; }

__global__ void read_at(const int32_t* memory, int64_t place, int32_t* out) { *out = memory[place]; }

void run(Queue& queue, std::string_view what, bool ordered, int32_t* in, int32_t* out) {
  if (what == "threads of a block") queue.launch(1, threads, 0, turn_around, out, ordered);
  if (what == "lanes of a warp") queue.launch(1, threads, 0, turn_warps_around, out, ordered);
  if (what == "lanes of half a warp") queue.launch(1, threads, 0, turn_halves_around, out, ordered);
  if (what == "blocks") queue.launch(threads, 1, 0, pass_on, out, ordered);
  if (what == "place before an argument") queue.launch(1, 1, 0, read_at, in, -1, out);
  if (what == "place after an argument") queue.launch(1, 1, 0, read_at, in, threads, out);
  if (what == "place before a result") queue.launch(1, 1, 0, read_at, out, -1, out);
  if (what == "place after a result") queue.launch(1, 1, 0, read_at, out, threads, out);
  if (what == "union-find") {
    plain_stores = !ordered;
    queue.copy(out, in, threads);
    queue.launch(threads, 1, 0, join_rows, PlantedUnionFind{out});
  }
  if (what == "small lengths") {
    plain_stores = !ordered;
    queue.copy(out, in, threads);
    // Two small integers together are the bits of a very small float64.
    queue.launch_over(threads / 2, planted_look_for_small<PlantedSetup>, Lengths{in, threads / 2, true},
                      Count{in + threads - 1, threads / 2}, reinterpret_cast<const PlantedSetup*>(in + 1), out + 1);
  }
}

ffi::Error race(cudaStream_t stream, ffi::Buffer<ffi::S32> in, ffi::Result<ffi::Buffer<ffi::S32>> out,
                ffi::Result<ffi::Buffer<ffi::U8>> scratch, std::string_view what, bool ordered) {
  return guarded([&] {
    Queue queue(stream, scratch->typed_data(), static_cast<int64_t>(scratch->element_count()));
    run(queue, what, ordered, in.typed_data(), out->typed_data());
  });
}

}  // namespace

// Takes the row numbers, (64,) int32, and returns (64,) int32.
JZTREE_DEFINE_SYMBOL(planted_race, race,
                     ffi::Ffi::Bind()
                         .Ctx<ffi::PlatformStream<cudaStream_t>>()
                         .Arg<ffi::Buffer<ffi::S32>>()
                         .Ret<ffi::Buffer<ffi::S32>>()
                         .Ret<ffi::Buffer<ffi::U8>>()
                         .Attr<std::string_view>("what")
                         .Attr<bool>("ordered"));

}  // namespace jztree
