// Handlers with errors that a GPU would punish, to show that the emulator sees them.

#include <string>
#include <string_view>

#include "common/cuda/primitives.cuh"
#include "common/kernel.h"

namespace jztree {
namespace {

// Whether memory of this alignment was granted, and had it. Asks with the class that XLA has for this, which the
// library does not use.
ffi::Error ask_for_alignment(ffi::ScratchAllocator scratch, ffi::Buffer<ffi::S32>,
                             ffi::Result<ffi::Buffer<ffi::S32>> out, int64_t alignment) {
  std::optional<void*> memory = scratch.Allocate(64, static_cast<size_t>(alignment));
  out->typed_data()[0] = memory.has_value() && reinterpret_cast<uintptr_t>(*memory) % 16 == 0;
  return ffi::Error::Success();
}

__global__ void write_behind(int32_t* scratch, int64_t count) { scratch[count] = 1; }

ffi::Error err(cudaStream_t stream, DeviceMemory scratch, ffi::Buffer<ffi::S32> in,
               ffi::Result<ffi::Buffer<ffi::S32>> out, std::string_view how) {
  return guarded([&] {
    Queue queue(stream, scratch);
    queue.copy(out->typed_data(), in.typed_data(), 1);
    if (how == "write behind scratch") queue.launch(1, 1, 0, write_behind, queue.scratch<int32_t>(100), 100);
    if (how == "launch on another stream") Queue(nullptr, scratch).launch(1, 1, 0, write_behind, out->typed_data(), 0);
    if (how == "copy on another stream") Queue(nullptr, scratch).copy(out->typed_data(), in.typed_data(), 1);
    if (how == "too many threads") queue.launch(1, 2048, 0, write_behind, out->typed_data(), 0);
    if (how == "too much shared memory") queue.launch(1, 1, 200 << 10, write_behind, out->typed_data(), 0);
    if (how == "too many blocks") queue.launch(int64_t{1} << 31, 1, 0, write_behind, out->typed_data(), 0);
    if (how == "unaligned memory for CUB") {
      size_t bytes = 0;
      cub::DeviceScan::ExclusiveSum(nullptr, bytes, in.typed_data(), out->typed_data(), 1, stream);
      auto* work = queue.scratch<unsigned char>(static_cast<int64_t>(bytes) + 1);
      cub::DeviceScan::ExclusiveSum(work + 1, bytes, in.typed_data(), out->typed_data(), 1, stream);
    }
  });
}

}  // namespace

// What warps came to since it was last asked for, one part a line.
extern "C" __attribute__((visibility("default"))) const char* jztree_emulator_counts() {
  static thread_local std::string text;
  text = emulator::Counts::all().text();
  emulator::Counts::all().reset();
  return text.c_str();
}

JZTREE_DEFINE_SYMBOL(planted_alignment, ask_for_alignment,
                     ffi::Ffi::Bind()
                         .Ctx<ffi::ScratchAllocator>()
                         .Arg<ffi::Buffer<ffi::S32>>()
                         .Ret<ffi::Buffer<ffi::S32>>()
                         .Attr<int64_t>("alignment"));
JZTREE_DEFINE_SYMBOL(planted_error, err,
                     ffi::Ffi::Bind()
                         .Ctx<ffi::PlatformStream<cudaStream_t>>()
                         .Ctx<DeviceMemory>()
                         .Arg<ffi::Buffer<ffi::S32>>()
                         .Ret<ffi::Buffer<ffi::S32>>()
                         .Attr<std::string_view>("how"));

}  // namespace jztree
