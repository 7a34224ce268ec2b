// What every CUDA handler works with: the stream that XLA gives it, scratch memory (device_memory.cuh), and launches
// whose errors are not lost. Nothing here waits for the GPU.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

#include "device_memory.cuh"

namespace jztree {

// How often a warp comes here is counted by the emulator (tests/native/cuda_emulator/counts.h), and means nothing to a
// GPU.
#ifndef JZTREE_COUNT
#define JZTREE_COUNT(part)
#endif

constexpr int warp_size = 32;
constexpr unsigned all_lanes = 0xffffffffu;

#ifdef __CUDACC__
// The shared memory that a launch asked for.
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char jztree_shared_memory[];
  return jztree_shared_memory;
}
#endif

// The number of this thread in a launch over items.
__device__ inline int64_t thread_index() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

class Queue {
 public:
  Queue(cudaStream_t stream, DeviceMemory& memory) : stream_(stream), memory_(memory) {}

  cudaStream_t stream() const { return stream_; }

  // Room for `count` values, undefined at first, until the handler returns. XLA reuses it for what comes after on the
  // stream.
  template <typename T>
  T* scratch(int64_t count) {
    return static_cast<T*>(memory_.allocate(static_cast<size_t>(count) * sizeof(T)));
  }

  template <typename... Parameters, typename... Arguments>
  void launch(int64_t blocks, int threads, size_t shared_bytes, void (*kernel)(Parameters...),
              const Arguments&... arguments) {
    if (blocks == 0) return;
    if (blocks > std::numeric_limits<int32_t>::max())
      throw std::runtime_error("a launch needs " + std::to_string(blocks) + " blocks, and CUDA has 2**31 - 1 at most.");
    // Without this a kernel has 48 kB, out of which what it declares itself is taken too.
    if (shared_bytes > 0)
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream_;
    check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
  }

  // One thread an item; the kernel asks thread_index() which one, and does nothing for those from `count` on.
  template <typename... Parameters, typename... Arguments>
  void launch_over(int64_t count, void (*kernel)(Parameters...), const Arguments&... arguments) {
    launch((count + threads_a_block - 1) / threads_a_block, threads_a_block, 0, kernel, arguments...);
  }

  // One warp an item; the kernel asks thread_index() / warp_size which one.
  template <typename... Parameters, typename... Arguments>
  void launch_warps(int64_t count, void (*kernel)(Parameters...), const Arguments&... arguments) {
    launch_over(count * warp_size, kernel, arguments...);
  }

  template <typename T>
  void copy(T* to, const T* from, int64_t count) {
    if (count == 0) return;
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(count) * sizeof(T), cudaMemcpyDeviceToDevice, stream_));
  }

  // Every byte of the values becomes `byte`.
  template <typename T>
  void fill_bytes(T* at, int byte, int64_t count) {
    if (count == 0) return;
    check(cudaMemsetAsync(at, byte, static_cast<size_t>(count) * sizeof(T), stream_));
  }

  static void check(cudaError_t error) {
    if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA reports: ") + cudaGetErrorString(error) + ".");
  }

 private:
  static constexpr int threads_a_block = 256;

  cudaStream_t stream_;
  DeviceMemory& memory_;
};

}  // namespace jztree
