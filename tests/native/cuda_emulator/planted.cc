// Handlers with errors that would fail on a GPU, to test that the emulator detects them.

#include <cub/cub.cuh>
#include <string>
#include <string_view>

#include "common/cuda/bounded_memory.cuh"
#include "common/cuda/host_copy.cuh"
#include "common/handler.h"

namespace jztree {
namespace {

__global__ void write_behind(int32_t* scratch, int64_t count) { scratch[count] = 1; }

void add_up(Queue& queue, ffi::Buffer<ffi::S32> in, ffi::Result<ffi::Buffer<ffi::S32>> out) {
  in_bounded_memory(queue, 2048, [&](void* work, size_t& bytes, cudaStream_t stream) {
    return cub::DeviceScan::ExclusiveSum(work, bytes, in.typed_data(), out->typed_data(), 1, stream);
  });
}

ffi::Error err(cudaStream_t stream, ffi::ScratchAllocator allocator, ffi::Buffer<ffi::S32> in,
               ffi::Result<ffi::Buffer<ffi::S32>> out, ffi::Result<ffi::Buffer<ffi::U8>> scratch,
               std::string_view how) {
  return guarded([&] {
    void* memory = scratch->typed_data();
    int64_t room = static_cast<int64_t>(scratch->element_count());
    Queue queue(stream, memory, room), elsewhere(nullptr, memory, room);
    if (how == "no work") return;
    queue.copy(out->typed_data(), in.typed_data(), 1);
    if (how == "write before scratch") queue.launch(1, 1, 0, write_behind, static_cast<int32_t*>(memory), -1);
    if (how == "write after scratch") queue.launch(1, 1, 0, write_behind, static_cast<int32_t*>(memory), room / 4);
    if (how == "write after a work array") {
      auto* first = queue.scratch<int32_t>(100);
      queue.scratch<int32_t>(100);
      queue.launch(1, 1, 0, write_behind, first, 100);
    }
    if (how == "too large work arrays") queue.scratch<unsigned char>(room);
    if (how == "memory from the runtime") allocator.Allocate(64);
    if (how == "too much memory for CUB")
      in_bounded_memory(queue, 100, [](void* work, size_t& bytes, cudaStream_t) {
        if (work) emulator::fail("CUB got less memory than it requested.");
        bytes = 101;
        return cudaSuccess;
      });
    if (how == "wait") to_host(queue, in.typed_data(), 1);
    if (how == "result read too early") {
      queue.fill_bytes(out->typed_data(), 1, 1);
      if (out->typed_data()[0] == 0x01010101) throw std::runtime_error("the work was done at once.");
    }
    if (how == "launch on another stream") elsewhere.launch(1, 1, 0, write_behind, out->typed_data(), 0);
    if (how == "copy on another stream") elsewhere.copy(out->typed_data(), in.typed_data(), 1);
    if (how == "too many threads") queue.launch(1, 2048, 0, write_behind, out->typed_data(), 0);
    if (how == "too much shared memory") queue.launch(1, 1, 57 << 10, write_behind, out->typed_data(), 0);
    if (how == "several amounts of shared memory")
      for (size_t kilobytes : {56, 47, 1, 56}) queue.launch(1, 1, kilobytes << 10, write_behind, out->typed_data(), 0);
    if (how == "lower limit of shared memory") {
      queue.launch(1, 1, 50 << 10, write_behind, out->typed_data(), 0);
      cudaFuncSetAttribute(write_behind, cudaFuncAttributeMaxDynamicSharedMemorySize, 45 << 10);
    }
    if (how == "kernel loaded during the call") {
      emulator::Call::current()->expect_loaded_kernels();
      queue.launch(1, 1, 0, write_behind, out->typed_data(), 0);
    }
    if (how == "loaded kernels") {
      Queue loader = Queue::that_loads(memory, room);
      loader.launch(1, 1, 0, write_behind, out->typed_data(), 0);
      add_up(loader, in, out);
      emulator::Call::current()->expect_loaded_kernels();
      queue.launch(1, 1, 0, write_behind, out->typed_data(), 0);
      add_up(queue, in, out);
    }
    if (how == "CUB after a rejected launch") {
      try {
        queue.launch(1, 2048, 0, write_behind, out->typed_data(), 0);
      } catch (const std::runtime_error&) {
        add_up(queue, in, out);
      }
    }
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

// Returns the counts of warps since the last call, one part per line.
extern "C" __attribute__((visibility("default"))) const char* jztree_emulator_counts() {
  static thread_local std::string text;
  text = emulator::Counts::all().text();
  emulator::Counts::all().reset();
  return text.c_str();
}

// Returns the number of times that the host waited for the GPU since the last call.
extern "C" __attribute__((visibility("default"))) int jztree_emulator_waits() {
  return static_cast<int>(emulator::waits().exchange(0));
}

// Returns the number of kernels, copies and fills that calls have put on streams since the last call.
extern "C" __attribute__((visibility("default"))) int jztree_emulator_operations() {
  return static_cast<int>(emulator::operations().exchange(0));
}

// Whether XLA may record a handler of this library in a command buffer.
extern "C" __attribute__((visibility("default"))) bool jztree_emulator_may_be_recorded(XLA_FFI_Handler* handler) {
  return emulator::may_be_recorded(handler, nullptr);
}

JZTREE_DEFINE_SYMBOL(planted_error, err,
                     ffi::Ffi::Bind()
                         .Ctx<ffi::PlatformStream<cudaStream_t>>()
                         .Ctx<ffi::ScratchAllocator>()
                         .Arg<ffi::Buffer<ffi::S32>>()
                         .Ret<ffi::Buffer<ffi::S32>>()
                         .Ret<ffi::Buffer<ffi::U8>>()
                         .Attr<std::string_view>("how"),
                     {ffi::Traits::kCmdBufferCompatible});

}  // namespace jztree
