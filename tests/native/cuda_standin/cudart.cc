// A stand-in for CUDA's runtime, without a GPU. It links to the host code that nvcc generates for the library. It
// checks each launch against the resources of the kernel in the machine code, and runs nothing.
//
// The limits are those of every supported GPU; the most shared memory of a block is set by the test. Errors, the last
// error of a thread and captures behave like in CUDA, as far as the library uses them.

#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "resources.h"

using standin::Kernel;
using standin::Kernels;
using standin::Stream;

namespace {

constexpr int shared_without_permission = 48 << 10, most_parameters = 4096, most_threads = 1024;
constexpr int registers_of_block = 65536, register_unit = 256, warp = 32;

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t refused(cudaError_t error, const std::string& why) {
  Kernels::all().complain(why);
  return last_error = error;
}

// The error of this call of the runtime, if the test wants it to fail.
cudaError_t wanted_error() {
  int& calls = standin::calls_until_failure();
  if (calls < 0 || --calls >= 0) return cudaSuccess;
  return last_error = cudaErrorMemoryAllocation;
}

Kernel* kernel_of(const void* stub) {
  std::lock_guard<std::mutex> lock(Kernels::all().mutex);
  auto found = Kernels::all().by_stub.find(stub);
  return found == Kernels::all().by_stub.end() ? nullptr : found->second;
}

Stream* stream_of(cudaStream_t stream) { return reinterpret_cast<Stream*>(stream); }

bool belongs_to_call(const Stream* stream) { return stream && (stream == standin::current() || stream->captures); }

int registers_of(const Kernel& kernel, int threads) {
  const int of_warp = (kernel.registers * warp + register_unit - 1) / register_unit * register_unit;
  return of_warp * ((threads + warp - 1) / warp);
}

std::string numbers(const Kernel& kernel, dim3 grid, dim3 block, size_t shared) {
  return kernel.name + ": " + std::to_string(grid.x) + " blocks of " + std::to_string(block.x) + " threads with " +
         std::to_string(shared) + " + " + std::to_string(kernel.shared) + " bytes of shared memory and " +
         std::to_string(kernel.registers) + " registers: ";
}

cudaError_t launch(Kernel* kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t on) {
  if (cudaError_t error = wanted_error()) return error;
  if (!kernel) return refused(cudaErrorInvalidDeviceFunction, "a launched kernel is not in the library.");
  const std::string text = numbers(*kernel, grid, block, shared);
  if (grid.x < 1 || grid.x > 0x7fffffffu || grid.y != 1 || grid.z != 1)
    return refused(cudaErrorInvalidConfiguration, text + "the number of blocks is invalid.");
  if (block.x < 1 || block.x > most_threads || block.y != 1 || block.z != 1)
    return refused(cudaErrorInvalidConfiguration, text + "the number of threads is invalid.");
  if (registers_of(*kernel, static_cast<int>(block.x)) > registers_of_block)
    return refused(cudaErrorLaunchOutOfResources, text + "a block has too many registers.");
  const auto all_shared = static_cast<int64_t>(shared) + kernel->shared;
  const int limit = kernel->allowed ? kernel->allowed + kernel->shared : shared_without_permission;
  if (all_shared > limit)
    return refused(cudaErrorInvalidValue, text + "only " + std::to_string(limit) + " are allowed.");
  if (kernel->parameters > most_parameters)
    return refused(cudaErrorInvalidValue, text + std::to_string(kernel->parameters) + " bytes of parameters.");
  Stream* stream = stream_of(on);
  if (!belongs_to_call(stream))
    return refused(cudaErrorInvalidResourceHandle, text + "the stream does not belong to the call.");
  if (!stream->captures && !kernel->loaded) Kernels::all().complain(text + "the initialize stage has not loaded it.");
  stream->nodes.push_back(kernel);
  std::lock_guard<std::mutex> lock(Kernels::all().mutex);
  ++Kernels::all().launches;
  return cudaSuccess;
}

cudaError_t put_other(cudaStream_t on, const char* what) {
  if (cudaError_t error = wanted_error()) return error;
  if (!belongs_to_call(stream_of(on)))
    return refused(cudaErrorInvalidResourceHandle, std::string(what) + ": the stream does not belong to the call.");
  ++stream_of(on)->other_nodes;
  return cudaSuccess;
}

struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
thread_local Configuration pushed;

}  // namespace

// What nvcc's host code calls.
extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  Kernel& kernel = Kernels::all().by_name[name];
  kernel.name = name;
  Kernels::all().by_stub[stub] = &kernel;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  pushed = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *static_cast<cudaStream_t*>(stream) = pushed.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = reinterpret_cast<cudaKernel_t>(kernel_of(stub));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**, size_t shared, cudaStream_t stream) {
  return launch(reinterpret_cast<Kernel*>(kernel), grid, block, shared, stream);
}
}

// The runtime's interface.

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* stub, void**) {
  return launch(kernel_of(stub), config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* stub) {
  if (cudaError_t error = wanted_error()) return error;
  Kernel* kernel = kernel_of(stub);
  if (!kernel) return refused(cudaErrorInvalidDeviceFunction, "a kernel is not in the library.");
  Kernels::all().load(kernel);
  *attributes = {};
  attributes->sharedSizeBytes = static_cast<size_t>(kernel->shared);
  attributes->numRegs = kernel->registers;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  attributes->maxThreadsPerBlock = most_threads;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* stub, cudaFuncAttribute attribute, int value) {
  if (cudaError_t error = wanted_error()) return error;
  Kernel* kernel = kernel_of(stub);
  if (!kernel || attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
    return refused(cudaErrorInvalidValue, "an attribute of a kernel is unknown.");
  if (value + kernel->shared > Kernels::all().most_shared)
    return refused(cudaErrorInvalidValue, kernel->name + ": more shared memory is allowed than a block can have.");
  std::lock_guard<std::mutex> lock(Kernels::all().mutex);
  if (value < kernel->allowed) Kernels::all().wrong.push_back(kernel->name + ": the shared memory limit was lowered.");
  kernel->allowed = value;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  if (cudaError_t error = wanted_error()) return error;
  *device = Kernels::all().gpu;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {  // never fails, because CUB keeps the result for ever
  *count = standin::most_gpus;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (cudaError_t error = wanted_error()) return error;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = shared_without_permission; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = Kernels::all().most_shared; break;
    case cudaDevAttrMaxGridDimX: *value = 0x7fffffff; break;
    default: return refused(cudaErrorInvalidValue, "attribute " + std::to_string(attribute) + " is not known here.");
  }
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* stub, int, size_t,
                                                                   unsigned) {
  if (cudaError_t error = wanted_error()) return error;
  if (!kernel_of(stub)) return refused(cudaErrorInvalidDeviceFunction, "a kernel is not in the library.");
  *blocks = 2;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "an error"; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaMemcpyAsync(void* to, const void*, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (kind == cudaMemcpyDeviceToHost) std::memset(to, 0, bytes);
  return put_other(stream, "a copy");
}
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t stream) { return put_other(stream, "a fill"); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  if (cudaError_t error = wanted_error()) return error;
  *stream = reinterpret_cast<cudaStream_t>(new Stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream_of(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (cudaError_t error = wanted_error()) return error;
  stream_of(stream)->captures = true;
  return cudaSuccess;
}
// The graph is a copy of the stream.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (cudaError_t error = wanted_error()) return error;
  if (!std::exchange(stream_of(stream)->captures, false))
    return refused(cudaErrorIllegalState, "a stream that captures nothing ends a capture.");
  *graph = reinterpret_cast<cudaGraph_t>(new Stream(*stream_of(stream)));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  if (cudaError_t error = wanted_error()) return error;
  auto* nodes = reinterpret_cast<Stream*>(graph);
  if (nodes->nodes.empty() && nodes->other_nodes == 0) return refused(cudaErrorInvalidValue, "a graph is empty.");
  for (Kernel* kernel : nodes->nodes) Kernels::all().load(kernel);
  *executable = reinterpret_cast<cudaGraphExec_t>(new Stream(*nodes));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Stream*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete reinterpret_cast<Stream*>(executable);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (cudaError_t error = wanted_error()) return error;
  if (stream_of(stream)->captures) return last_error = cudaErrorStreamCaptureUnsupported;
  return cudaSuccess;
}
