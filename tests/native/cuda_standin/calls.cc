// The Python interface of the stand-in: resources of kernels, calls, and faults.

#include <cuda_runtime_api.h>

#include <exception>
#include <string>
#include <utility>

#include "common/cuda/gpu_kernel.h"
#include "common/cuda/plain_call.h"
#include "resources.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using standin::Kernels;

namespace {

enum Mode { load, run, capture };

// Different addresses that nothing may read.
void place(std::vector<jztree::Buffer>* buffers, uintptr_t first) {
  for (jztree::Buffer& buffer : *buffers) buffer.data = reinterpret_cast<void*>(first += uintptr_t{1} << 32);
}

void call(const jztree::GpuKernel& kernel, Mode mode, jztree::Arguments& arguments) {
  const jztree::Buffer scratch = arguments.take_last_result();
  if (mode == load) return jztree::load_kernels(kernel.work(), scratch, arguments);
  standin::Stream stream{mode == capture, {}, 0};
  standin::current() = &stream;
  jztree::put_on_stream(kernel.work(), &stream, scratch, arguments);
  standin::current() = nullptr;
  if (stream.nodes.empty() && stream.other_nodes == 0) Kernels::all().complain("a call puts nothing on its stream.");
}

}  // namespace

// Resources of a kernel, by its name in the machine code. Returns whether the library has it.
EXPORT bool standin_describe(const char* name, int registers, int shared, int parameters) {
  auto& known = Kernels::all().by_name;
  auto found = known.find(name);
  if (found == known.end()) return false;
  found->second.registers = registers;
  found->second.shared = shared;
  found->second.parameters = parameters;
  return true;
}

// A new GPU: without loaded kernels and permissions. bytes: the most shared memory of a block, with permission.
EXPORT void standin_reset(int bytes) {
  Kernels::all().most_shared = bytes;
  for (auto& [name, kernel] : Kernels::all().by_name) {
    kernel.allowed = 0;
    kernel.loaded = false;
  }
}

EXPORT int standin_launches() { return Kernels::all().launches; }

// The kernels without resources, and everything that was wrong since the last call, in lines.
EXPORT const char* standin_complaints() {
  static std::string text;
  text.clear();
  for (auto& [name, kernel] : Kernels::all().by_name)
    if (kernel.registers == 0) text += name + ": its resources are not known.\n";
  for (const std::string& line : std::exchange(Kernels::all().wrong, {})) text += line + "\n";
  return text.c_str();
}

// Call a kernel with these shapes; the last result is its work memory. Returns the error, or an empty text.
EXPORT const char* standin_call(int mode, const char* name, const jztree::PlainBuffer* arguments, int64_t num_arguments,
                                const jztree::PlainBuffer* results, int64_t num_results,
                                const jztree::PlainAttribute* attributes, int64_t num_attributes) {
  using namespace jztree;
  static thread_local std::string error;
  error.clear();
  try {
    PlainAttributes plain(attributes, num_attributes);
    std::vector<Buffer> in = buffers(arguments, num_arguments), out = buffers(results, num_results);
    place(&in, uintptr_t{1} << 40);
    place(&out, uintptr_t{1} << 44);
    Arguments values(name, std::move(in), std::move(out), plain);
    for (const Kernel* entry : Kernel::all())
      if (std::string_view(name) == entry->name()) call(*static_cast<const GpuKernel*>(entry), Mode(mode), values);
  } catch (const std::exception& failure) {
    error = failure.what();
  }
  standin::current() = nullptr;
  if (cudaPeekAtLastError() != cudaSuccess) error += " The last error is not forgotten.";
  cudaGetLastError();
  return error.c_str();
}
