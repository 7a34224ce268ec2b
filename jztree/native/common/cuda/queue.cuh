// The tools of every CUDA kernel: the stream from XLA, memory for its work arrays, and launches with error checks.
// Nothing here waits for the GPU.
//
// Nothing here selects the GPU either. Before the first handler of a program and until the last one, XLA makes the
// right GPU current in the thread that calls handlers (`executor->Activate()` in ExecuteAsyncOnStreamImpl,
// xla/service/gpu/gpu_executable.cc). It would be wrong to set the device ordinal that handlers can query: it numbers
// logical devices, and one GPU may have several.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace jztree {

// The emulator counts the visits of each warp to this place (tests/native/cuda_emulator/counts.h). On a GPU the macro
// does nothing.
#ifndef JZTREE_COUNT
#define JZTREE_COUNT(part)
#endif
// The emulator leaves this number of bytes free after each work array and detects writes to them (xla_runtime.h there).
#ifndef JZTREE_GAP
#define JZTREE_GAP 0
#define JZTREE_WATCH_GAP(begin, end)
#endif

constexpr int warp_size = 32;
constexpr unsigned all_lanes = 0xffffffffu;
// The most shared memory that a kernel declares if its launch requests more.
constexpr size_t most_declared_shared = 8 << 10;

#ifdef __CUDACC__
// The shared memory requested by the launch.
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char jztree_shared_memory[];
  return jztree_shared_memory;
}
#endif

// The number of this thread in a launch over items.
__device__ inline int64_t thread_index() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

class Queue {
 public:
  // scratch: memory for the call's work arrays.
  Queue(cudaStream_t stream, void* scratch, int64_t bytes)
      : stream_(stream), scratch_(reinterpret_cast<uintptr_t>(scratch)), bytes_(bytes) {}

  // A queue that launches nothing and needs no GPU, but measures the scratch memory of a call.
  static Queue that_measures() {
    Queue queue(nullptr, reinterpret_cast<void*>(alignment), std::numeric_limits<int64_t>::max());
    queue.mode_ = Mode::measures;
    return queue;
  }
  // A queue that launches nothing, but loads the kernels that a call launches into the current GPU.
  static Queue that_loads(void* scratch, int64_t bytes) {
    Queue queue(nullptr, scratch, bytes);
    queue.mode_ = Mode::loads;
    return queue;
  }
  bool measures() const { return mode_ == Mode::measures; }
  bool loads() const { return mode_ == Mode::loads; }
  // Whether the queue has put no kernel, copy or fill on the stream.
  bool is_empty() const { return is_empty_; }
  // Enough for all requested work arrays at any start address; never 0.
  int64_t scratch_bytes() const { return used_ + static_cast<int64_t>(alignment); }

  cudaStream_t stream() const { return stream_; }

  // Space for `count` values, initially undefined, until the work of this call is done. XLA reuses it for later work on
  // the stream.
  template <typename T>
  T* scratch(int64_t count) {
    int64_t bytes = std::max<int64_t>(1, count * static_cast<int64_t>(sizeof(T)));
    uintptr_t first = aligned(scratch_), at = first + static_cast<uintptr_t>(used_);
    used_ = static_cast<int64_t>(aligned(at + static_cast<uintptr_t>(bytes + JZTREE_GAP)) - first);
    if (static_cast<int64_t>(first - scratch_) + used_ > bytes_)
      throw std::runtime_error("a kernel needs at least " + std::to_string(used_) +
                               " bytes for its work arrays, more than the " + std::to_string(bytes_) +
                               " bytes that were reserved when the program was traced.");
    if (runs()) {
      JZTREE_WATCH_GAP(at + static_cast<uintptr_t>(bytes), first + static_cast<uintptr_t>(used_));
    }
    return reinterpret_cast<T*>(at);
  }

  template <typename... Parameters, typename... Arguments>
  void launch(int64_t blocks, int threads, size_t shared_bytes, void (*kernel)(Parameters...),
              const Arguments&... arguments) {
    if (blocks == 0 || measures()) return;
    if (loads()) return load(kernel);
    if (blocks > std::numeric_limits<int32_t>::max())
      throw std::runtime_error("a launch needs " + std::to_string(blocks) +
                               " blocks, but CUDA allows at most 2**31 - 1.");
    if (shared_bytes > shared_without_permission) allow_most_shared(kernel);
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream_;
    is_empty_ = false;
    check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
  }

  // One thread per item; the kernel gets its item from thread_index(), and does nothing for items from `count` on.
  template <typename... Parameters, typename... Arguments>
  void launch_over(int64_t count, void (*kernel)(Parameters...), const Arguments&... arguments) {
    launch((count + threads_a_block - 1) / threads_a_block, threads_a_block, 0, kernel, arguments...);
  }

  // One warp per item; the kernel gets its item from thread_index() / warp_size.
  template <typename... Parameters, typename... Arguments>
  void launch_warps(int64_t count, void (*kernel)(Parameters...), const Arguments&... arguments) {
    launch_over(count * warp_size, kernel, arguments...);
  }

  // The same for warps that need `warp_bytes` of shared memory each, in blocks of up to `most_threads`.
  template <typename... Parameters, typename... Arguments>
  void launch_warps(int64_t count, int64_t warp_bytes, int most_threads, void (*kernel)(Parameters...),
                    const Arguments&... arguments) {
    int threads = block_threads(warp_bytes, most_threads), warps = threads / warp_size;
    launch((count + warps - 1) / warps, threads, static_cast<size_t>(warps * warp_bytes), kernel, arguments...);
  }

  // The number of threads per block if each warp needs this amount of shared memory. Warps that together need more than
  // a kernel gets without permission are in separate blocks. With permission, a block may have 64 kB on GPUs of compute
  // capability 7.5, and more on newer ones.
  static int block_threads(int64_t warp_bytes, int most) {
    constexpr int64_t shared_bytes = 48 << 10;
    int64_t warps = std::min<int64_t>(most / warp_size, shared_bytes / std::max<int64_t>(1, warp_bytes));
    return static_cast<int>(std::max<int64_t>(1, warps)) * warp_size;
  }

  template <typename T>
  void copy(T* to, const T* from, int64_t count) {
    if (count == 0 || !runs()) return;
    is_empty_ = false;
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(count) * sizeof(T), cudaMemcpyDeviceToDevice, stream_));
  }

  // Set every byte of the values to `byte`.
  template <typename T>
  void fill_bytes(T* at, int byte, int64_t count) {
    if (count == 0 || !runs()) return;
    is_empty_ = false;
    check(cudaMemsetAsync(at, byte, static_cast<size_t>(count) * sizeof(T), stream_));
  }

  static void check(cudaError_t error) {
    if (error == cudaSuccess) return;
    cudaGetLastError();  // forgets the error; otherwise, the next call of CUB would report it as its own
    throw std::runtime_error(std::string("CUDA reports: ") + cudaGetErrorString(error) + ".");
  }

 private:
  enum class Mode { runs, measures, loads };
  static constexpr int threads_a_block = 256;
  static constexpr uintptr_t alignment = 256;  // as CUB requires

  // A kernel gets 48 kB of shared memory in all.
  static constexpr size_t shared_without_permission = (48 << 10) - most_declared_shared;

  bool runs() const { return mode_ == Mode::runs; }

  // CUDA loads a kernel when it is first used. This use does not run it.
  template <typename... Parameters>
  static void load(void (*kernel)(Parameters...)) {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, kernel));
  }

  // Allow a kernel all shared memory of the GPU. The limit belongs to the kernel, and other host threads may be about
  // to launch it with more or less memory on the same GPU. All threads set the same limit, so none lowers that of
  // another.
  template <typename... Parameters>
  static void allow_most_shared(void (*kernel)(Parameters...)) {
    int device = 0, most = 0;
    cudaFuncAttributes attributes{};
    check(cudaGetDevice(&device));
    check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    check(cudaFuncGetAttributes(&attributes, kernel));
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               most - static_cast<int>(attributes.sharedSizeBytes)));
  }

  static uintptr_t aligned(uintptr_t at) { return (at + alignment - 1) & ~(alignment - 1); }

  cudaStream_t stream_;
  uintptr_t scratch_;
  int64_t bytes_, used_ = 0;
  Mode mode_ = Mode::runs;
  bool is_empty_ = true;
};

}  // namespace jztree
