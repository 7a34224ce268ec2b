// XLA's runtime as a handler for a GPU meets it: the table of functions that comes with each call, with those for GPUs
// in place of those that the CPU's runtime refuses. They follow the rules of xla/ffi/ffi_api.cc, words included:
//
// - Device memory is granted at alignments that are powers of two up to 16, and not better aligned than that. It holds
//   garbage at first, has red zones around it, and must be given back, with its size, before the handler returns. What
//   is given back is overwritten at once.
// - There is a stream, another one for each call, and no pool of threads.
//
// What breaks the rules in a way that XLA would not see, such as a write past the end, ends the program with a
// sentence.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "fibers.h"
#include "xla/ffi/api/c_api.h"

namespace emulator {

// One call of a handler.
class Call {
 public:
  explicit Call(const XLA_FFI_Api* runtime) : runtime_(runtime), outer_(current()) { current() = this; }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    if (!blocks_.empty()) fail("a handler returned without giving its scratch memory back.");
    current() = outer_;
  }

  static Call*& current() {
    static thread_local Call* call = nullptr;
    return call;
  }

  // No two calls have the same stream, so that nobody can keep one.
  void* stream() { return this; }

  XLA_FFI_Error* allocate(XLA_FFI_DeviceMemory_Allocate_Args* args) {
    if (args->struct_size < XLA_FFI_DeviceMemory_Allocate_Args_STRUCT_SIZE)
      return error(XLA_FFI_Error_Code_INVALID_ARGUMENT, "Unexpected XLA_FFI_DeviceMemory_Allocate_Args size");
    if (args->alignment == 0 || (args->alignment & (args->alignment - 1)) != 0 || args->alignment > most_alignment)
      return error(XLA_FFI_Error_Code_INVALID_ARGUMENT, "Unsupported alignment: " + std::to_string(args->alignment));
    if (args->size > largest_block())
      return error(XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
                   "Out of memory while trying to allocate " + std::to_string(args->size) + " bytes.");
    // 16 bytes behind a multiple of 256: whoever aligns inside the block loses all that they may lose, before what they
    // use and not behind it, so that the red zone begins where theirs ends.
    auto* block = static_cast<unsigned char*>(std::malloc(args->size + 2 * red_zone + 256 + most_alignment));
    if (!block) fail("the host has no memory for scratch.");
    auto even = (reinterpret_cast<uintptr_t>(block) + red_zone + 255) & ~uintptr_t{255};
    auto* data = reinterpret_cast<unsigned char*>(even + most_alignment);
    std::memset(data - red_zone, guard, red_zone);
    std::memset(data, garbage, args->size);
    std::memset(data + args->size, guard, red_zone);
    blocks_.push_back({block, data, args->size});
    args->data = data;
    return nullptr;
  }

  XLA_FFI_Error* give_back(XLA_FFI_DeviceMemory_Free_Args* args) {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].data != args->data) continue;
      if (blocks_[i].bytes != args->size)
        fail("scratch memory was given back with another size than it was asked for.");
      check_red_zones(blocks_[i]);
      std::memset(blocks_[i].data, freed, blocks_[i].bytes);
      std::free(blocks_[i].allocation);
      blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
      return nullptr;
    }
    fail("a handler gave memory back that this call had not been granted.");
  }

  XLA_FFI_Error* error(XLA_FFI_Error_Code code, const std::string& message) {
    XLA_FFI_Error_Create_Args args{};
    args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
    args.errc = code;
    args.message = message.c_str();
    return runtime_->XLA_FFI_Error_Create(&args);
  }

 private:
  static constexpr size_t most_alignment = 16, red_zone = 64;
  static constexpr unsigned char guard = 0xc3, garbage = 0xa5, freed = 0xdd;

  struct Block {
    void* allocation;
    unsigned char* data;
    size_t bytes;
  };

  // Set by tests of what happens when there is no memory.
  static size_t largest_block() {
    const char* text = std::getenv("JZTREE_EMULATOR_LARGEST_BLOCK");
    return text ? static_cast<size_t>(std::atoll(text)) : SIZE_MAX;
  }

  static void check_red_zones(const Block& block) {
    for (size_t i = 0; i < red_zone; ++i)
      if (block.data[-1 - static_cast<std::ptrdiff_t>(i)] != guard || block.data[block.bytes + i] != guard)
        fail("a kernel wrote outside of its scratch memory.");
  }

  const XLA_FFI_Api* runtime_;
  Call* outer_;
  std::vector<Block> blocks_;
};

// The table of functions of the runtime that a handler was called by, as a GPU's.
inline XLA_FFI_Api gpu_api(const XLA_FFI_Api* runtime) {
  XLA_FFI_Api api = *runtime;
  api.struct_size = sizeof(XLA_FFI_Api);
  api.XLA_FFI_Stream_Get = +[](XLA_FFI_Stream_Get_Args* args) -> XLA_FFI_Error* {
    args->stream = Call::current()->stream();
    return nullptr;
  };
  api.XLA_FFI_DeviceMemory_Allocate =
      +[](XLA_FFI_DeviceMemory_Allocate_Args* args) { return Call::current()->allocate(args); };
  api.XLA_FFI_DeviceMemory_Free =
      +[](XLA_FFI_DeviceMemory_Free_Args* args) { return Call::current()->give_back(args); };
  api.XLA_FFI_ThreadPool_Schedule = +[](XLA_FFI_ThreadPool_Schedule_Args*) {
    return Call::current()->error(XLA_FFI_Error_Code_UNIMPLEMENTED, "XLA FFI CPU context is not available");
  };
  api.XLA_FFI_ThreadPool_NumThreads = +[](XLA_FFI_ThreadPool_NumThreads_Args*) {
    return Call::current()->error(XLA_FFI_Error_Code_UNIMPLEMENTED, "XLA FFI CPU context is not available");
  };
  return api;
}

inline XLA_FFI_Error* as_on_a_gpu(XLA_FFI_Handler* handler, XLA_FFI_CallFrame* frame) {
  Call call(frame->api);
  XLA_FFI_Api api = gpu_api(frame->api);
  XLA_FFI_CallFrame on_gpu = *frame;
  on_gpu.api = &api;
  XLA_FFI_Error* error = handler(&on_gpu);
  frame->future = on_gpu.future;
  return error;
}

}  // namespace emulator
