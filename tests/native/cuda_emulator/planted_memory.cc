// Kernels that use memory that is not theirs or is uninitialised, to test that the emulator detects it.

#include <string_view>

#include "common/cuda/context.cuh"
#include "common/handler.h"

namespace jztree {
namespace {

constexpr int threads = 64;

// Each block finds the values of the previous block, unless the emulator overwrites them.
__global__ void find_in_shared(int32_t* out) {
  __shared__ int32_t left[threads];
  if (blockIdx.x == gridDim.x - 1) out[threadIdx.x] = left[threadIdx.x];
  left[threadIdx.x] = 7;
}

__global__ void find_in_asked_for(int32_t* out) {
  auto* left = reinterpret_cast<int32_t*>(dynamic_shared());
  if (blockIdx.x == gridDim.x - 1) out[threadIdx.x] = left[threadIdx.x];
  left[threadIdx.x] = 7;
}

__global__ void write_behind_asked_for() { reinterpret_cast<int32_t*>(dynamic_shared())[threads] = 7; }

__global__ void write_at(int32_t* memory, int64_t place) { memory[place] = 7; }

// Only the order of the threads decides which thread is the last at an atomic operation.
__global__ void find_last(int32_t* out) { atomicExch(out, static_cast<int32_t>(threadIdx.x)); }

// A thread reads before all threads of the block have written, so the result depends on their order.
__global__ void find_first(int32_t* out) {
  if (atomicAdd(out, 1) == 0) out[1] = static_cast<int32_t>(blockIdx.x);
}

// Returns the alignment of the result's address, as the largest power of two.
__global__ void find_alignment(const int32_t* memory, int32_t* out) {
  auto address = reinterpret_cast<uintptr_t>(memory);
  out[threadIdx.x] = static_cast<int32_t>(address & (0 - address));
}

void count_on(Queue& queue, std::string_view what, int32_t* in, int32_t* out) {
  if (what == "shared memory") queue.launch(3, threads, 0, find_in_shared, out);
  if (what == "requested shared memory") queue.launch(3, threads, threads * sizeof(int32_t), find_in_asked_for, out);
  if (what == "more shared memory") queue.launch(1, 1, threads * sizeof(int32_t), write_behind_asked_for);
  if (what == "place before an argument") queue.launch(1, 1, 0, write_at, in, -1);
  if (what == "place after an argument") queue.launch(1, 1, 0, write_at, in, threads);
  if (what == "place before a result") queue.launch(1, 1, 0, write_at, out, -1);
  if (what == "place after a result") queue.launch(1, 1, 0, write_at, out, threads);
  if (what == "argument") queue.launch(1, 1, 0, write_at, in, 0);
  if (what == "order of threads") queue.launch(1, threads, 0, find_last, out);
  if (what == "order of blocks") {
    queue.fill_bytes(out, 0, 1);
    queue.launch(threads, 1, 0, find_first, out);
  }
  if (what == "alignment of an argument") queue.launch(1, threads, 0, find_alignment, in, out);
  if (what == "alignment of a result") queue.launch(1, threads, 0, find_alignment, out, out);
  if (what == "scratch") queue.copy(out, queue.scratch<int32_t>(threads), threads);
}

ffi::Error count_on_memory(cudaStream_t stream, ffi::Buffer<ffi::S32> in, ffi::Result<ffi::Buffer<ffi::S32>> out,
                           ffi::Result<ffi::Buffer<ffi::U8>> scratch, std::string_view what) {
  return guarded([&] {
    Queue queue(stream, scratch->typed_data(), static_cast<int64_t>(scratch->element_count()));
    count_on(queue, what, in.typed_data(), out->typed_data());
  });
}

}  // namespace

// Takes and returns (64,) int32.
JZTREE_DEFINE_SYMBOL(planted_memory, count_on_memory,
                     ffi::Ffi::Bind()
                         .Ctx<ffi::PlatformStream<cudaStream_t>>()
                         .Arg<ffi::Buffer<ffi::S32>>()
                         .Ret<ffi::Buffer<ffi::S32>>()
                         .Ret<ffi::Buffer<ffi::U8>>()
                         .Attr<std::string_view>("what"));

}  // namespace jztree
