// The part of CUDA that jztree's kernels use, on the host: kernels are compiled as C++ and run thread by thread
// (block.h). Device memory is host memory. Work on a stream is run later (xla_runtime.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "block.h"
#include "counts.h"
#include "launch.h"
#include "loading.h"
#include "watch.h"
#include "xla_runtime.h"

using std::isfinite;

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static thread_local
#define __align__(n) alignas(n)
#define JZTREE_COUNT(name)                                                               \
  do {                                                                                   \
    static const int part = emulator::Counts::all().part(name);                          \
    emulator::Block::current().counts().come(emulator::Stacks::current()->thread, part); \
  } while (false)
#define JZTREE_GAP static_cast<int64_t>(emulator::Heap::red_zone)
#define JZTREE_WATCH_GAP(begin, end) emulator::Call::current()->watch_gap(begin, end)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace emulator {

template <unsigned (*Number)()>
struct Index {
  struct X {
    operator unsigned() const { return Number(); }
  } x;
};

inline unsigned thread_index() { return static_cast<unsigned>(Stacks::current()->thread); }
inline unsigned block_index() { return Block::current().index(); }
inline unsigned block_threads() { return Block::current().launch().threads; }
inline unsigned grid_blocks() { return Block::current().launch().blocks; }

}  // namespace emulator

inline const emulator::Index<emulator::thread_index> threadIdx{};
inline const emulator::Index<emulator::block_index> blockIdx{};
inline const emulator::Index<emulator::block_threads> blockDim{};
inline const emulator::Index<emulator::grid_blocks> gridDim{};

namespace jztree {
// Production code declares this with the CUDA compiler's own syntax.
inline unsigned char* dynamic_shared() { return emulator::Block::current().shared().asked_for(); }
}  // namespace jztree

typedef struct EmulatedStream* cudaStream_t;
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
};
enum cudaMemcpyKind { cudaMemcpyDeviceToDevice, cudaMemcpyDeviceToHost, cudaMemcpyHostToDevice };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
struct cudaFuncAttributes {
  size_t sharedSizeBytes;
};
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount, cudaDevAttrMaxSharedMemoryPerBlockOptin };

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess                     ? "no error"
         : error == cudaErrorInvalidValue         ? "invalid argument"
         : error == cudaErrorInvalidConfiguration ? "invalid configuration argument"
                                                  : "out of memory";
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  using Shared = emulator::SharedMemory;
  *value =
      attribute == cudaDevAttrMultiProcessorCount ? 2 : static_cast<int>(Shared::most_bytes + Shared::declared_bytes);
  return cudaSuccess;
}

namespace emulator {

// CUDA keeps the last error of each thread until cudaGetLastError returns it.
inline cudaError_t& last_error() {
  static thread_local cudaError_t error = cudaSuccess;
  return error;
}
inline cudaError_t refused(cudaError_t error) { return last_error() = error; }

// Work on any stream but the call's own would not be ordered with the work before and after it.
inline void expect_stream(cudaStream_t stream) {
  if (!Call::current() || (stream != Call::current()->stream() && !Capture::of(stream)))
    fail("work was put on a stream that does not belong to the call.");
}

inline void put_on(cudaStream_t stream, std::function<void()> work) {
  expect_stream(stream);
  if (!Capture::of(stream)) Call::current()->put(std::move(work));
}

// A kernel is about to be put on a stream. CUDA may load it now, or when a graph with it becomes executable.
inline void use_kernel(cudaStream_t stream, const void* kernel) {
  if (Capture* capture = Capture::of(stream)) {
    capture->kernels.push_back(kernel);
  } else {
    Call::current()->use(kernel);
  }
}

// Counts global memory that the call reads and writes outside of kernels.
inline void count_transfer(size_t read, size_t written) {
  Watched::transfer(Call::current()->handler(), read, written);
}

// The shared memory that all threads of the host allow for kernels. Lowering it ends the program, because another
// thread may be about to launch the kernel.
class AllowedShared {
 public:
  static AllowedShared& all() {
    static AllowedShared one;
    return one;
  }
  size_t bytes(const void* kernel) {
    std::lock_guard<std::mutex> lock(mutex_);
    return of(kernel);
  }
  void allow(const void* kernel, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (bytes < of(kernel)) fail("a kernel's limit of shared memory was lowered.");
    of(kernel) = bytes;
  }

 private:
  size_t& of(const void* kernel) {
    return allowed_.emplace(kernel, SharedMemory::bytes_without_permission).first->second;
  }

  std::mutex mutex_;
  std::unordered_map<const void*, size_t> allowed_;
};

}  // namespace emulator

inline cudaError_t cudaGetLastError() { return std::exchange(emulator::last_error(), cudaSuccess); }

enum { cudaStreamNonBlocking = 1 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed };
typedef emulator::Capture *cudaGraph_t, *cudaGraphExec_t;

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(new emulator::Capture);
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete reinterpret_cast<emulator::Capture*>(stream);
  return cudaSuccess;
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  emulator::Capture::current() = reinterpret_cast<emulator::Capture*>(stream);
  return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  emulator::Capture* capture = emulator::Capture::of(stream);
  if (!capture) return emulator::refused(cudaErrorInvalidValue);
  emulator::Capture::current() = nullptr;
  *graph = new emulator::Capture(*capture);
  return cudaSuccess;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  for (const void* kernel : graph->kernels) emulator::Loaded::all().add(kernel);
  *executable = new emulator::Capture(*graph);
  return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}

inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  emulator::expect_stream(stream);
  emulator::Call::current()->wait();
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  emulator::put_on(stream, [=] {
    emulator::count_transfer(bytes, bytes);
    if (bytes > 0) std::memmove(to, from, bytes);
  });
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream,
                                   const char* function = __builtin_FUNCTION()) {
  if (emulator::is_left_out(emulator::Call::current()->handler(), function)) return cudaSuccess;
  emulator::put_on(stream, [=] {
    emulator::count_transfer(0, bytes);
    if (bytes > 0) std::memset(to, value, bytes);
  });
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int bytes) {
  if (bytes < 0 || static_cast<size_t>(bytes) > emulator::SharedMemory::most_bytes)
    return emulator::refused(cudaErrorInvalidValue);
  emulator::AllowedShared::all().allow(reinterpret_cast<const void*>(kernel), static_cast<size_t>(bytes));
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel* kernel) {
  emulator::Loaded::all().add(reinterpret_cast<const void*>(kernel));
  attributes->sharedSizeBytes = emulator::SharedMemory::declared_bytes;
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int, size_t) {
  *blocks = 2;
  return cudaSuccess;
}

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  if (config->gridDim.x < 1 || config->gridDim.x > 0x7fffffffu || config->blockDim.x < 1 || config->blockDim.x > 1024)
    return emulator::refused(cudaErrorInvalidConfiguration);
  if (config->dynamicSmemBytes > emulator::AllowedShared::all().bytes(reinterpret_cast<const void*>(kernel)))
    return emulator::refused(cudaErrorInvalidValue);
  emulator::use_kernel(config->stream, reinterpret_cast<const void*>(kernel));
  emulator::put_on(config->stream, [launched = *config, kernel, given = std::tuple<Parameters...>(arguments...)] {
    emulator::run_blocks(emulator::Call::current()->handler(), launched.gridDim.x, launched.blockDim.x,
                         launched.dynamicSmemBytes, [&] { std::apply(kernel, given); });
  });
  return cudaSuccess;
}

// Barriers, and communication between the lanes of a warp.

inline void __syncthreads(const char* function = __builtin_FUNCTION()) {
  emulator::Block& block = emulator::Block::current();
  if (!emulator::is_left_out(block.launch().handler, function)) block.sync_block();
}
inline void __syncwarp(unsigned mask = 0xffffffffu, const char* function = __builtin_FUNCTION()) {
  emulator::Block& block = emulator::Block::current();
  if (!emulator::is_left_out(block.launch().handler, function)) block.meet(mask, emulator::Operation::sync);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

namespace emulator {

template <typename T>
T shuffle(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 16 && std::is_trivially_copyable<T>::value, "a lane passes at most 16 bytes");
  Fiber& me = *Stacks::current();
  std::memcpy(me.value, &value, sizeof(T));
  me.source = source;
  Block::current().meet(mask, Operation::shuffle);
  T result;
  std::memcpy(&result, me.result, sizeof(T));
  return result;
}

inline int lane() { return Stacks::current()->lane(); }

inline unsigned vote(unsigned mask, bool predicate) {
  Fiber& me = *Stacks::current();
  me.predicate = predicate;
  return Block::current().meet(mask, Operation::ballot).ballot;
}

}  // namespace emulator

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  int first = emulator::lane() & ~(width - 1);
  return emulator::shuffle(mask, value, first + (source & (width - 1)));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32) {
  int other = emulator::lane() ^ flip;
  return emulator::shuffle(mask, value, (other ^ emulator::lane()) & ~(width - 1) ? -1 : other);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  int place = emulator::lane() & (width - 1);
  return emulator::shuffle(mask, value, place < static_cast<int>(by) ? -1 : emulator::lane() - static_cast<int>(by));
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  int place = emulator::lane() & (width - 1);
  return emulator::shuffle(mask, value,
                           place + static_cast<int>(by) >= width ? -1 : emulator::lane() + static_cast<int>(by));
}
// All lanes take part.
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
  for (int flip = 16; flip > 0; flip /= 2) value = std::min(value, __shfl_xor_sync(mask, value, flip));
  return value;
}
inline unsigned __ballot_sync(unsigned mask, int predicate) { return emulator::vote(mask, predicate != 0); }
inline int __any_sync(unsigned mask, int predicate) { return emulator::vote(mask, predicate != 0) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return emulator::vote(mask, predicate != 0) == mask; }

// Atomic operations. All threads of a launch run in one host thread, so plain operations suffice. Several host devices
// may run at once, but on different memory.

namespace emulator {
template <typename T, typename Change>
JZTREE_UNWATCHED T atomic(T* at, const Change& change) {
  Block::current().may_interleave();
  Watched::atomic(at, sizeof(T));
  T old = *at;
  *at = change(old);
  return old;
}
}  // namespace emulator

template <typename T>
T atomicAdd(T* at, std::common_type_t<T> value) {
  return emulator::atomic(at, [&](T old) { return static_cast<T>(old + value); });
}
template <typename T>
T atomicMin(T* at, std::common_type_t<T> value) {
  return emulator::atomic(at, [&](T old) { return std::min(old, value); });
}
template <typename T>
T atomicMax(T* at, std::common_type_t<T> value) {
  return emulator::atomic(at, [&](T old) { return std::max(old, value); });
}
template <typename T>
T atomicOr(T* at, std::common_type_t<T> value) {
  return emulator::atomic(at, [&](T old) { return static_cast<T>(old | value); });
}
template <typename T>
T atomicExch(T* at, std::common_type_t<T> value) {
  return emulator::atomic(at, [&](T) { return value; });
}
template <typename T>
T atomicCAS(T* at, std::common_type_t<T> expected, std::common_type_t<T> value) {
  return emulator::atomic(at, [&](T old) { return old == expected ? value : old; });
}

template <typename T>
T __ldg(const T* at) {
  return *at;
}

// Bits.

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
namespace emulator {
template <typename To, typename From>
To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "bits are copied");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
}  // namespace emulator
inline int __float_as_int(float x) { return emulator::same_bits<int>(x); }
inline float __int_as_float(int x) { return emulator::same_bits<float>(x); }
inline long long __double_as_longlong(double x) { return emulator::same_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return emulator::same_bits<double>(x); }
