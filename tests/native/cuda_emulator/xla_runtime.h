// XLA's runtime as a handler for a GPU meets it: the table of functions that comes with each call, with those for GPUs
// in place of those that the CPU's runtime refuses. They follow the rules of xla/ffi/ffi_api.cc, words included:
//
// - Arguments and results are on the device (call_buffers.h).
// - Device memory is granted at alignments that are powers of two up to 16, and not better aligned than that. It holds
//   what somebody else left there, has red zones around it, and must be given back, with its size, before the handler
//   returns.
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

#include "call_buffers.h"
#include "heap.h"
#include "xla/ffi/api/c_api.h"

namespace emulator {

// One call of a handler.
class Call {
 public:
  Call(const char* handler, const XLA_FFI_Api* runtime) : handler_(handler), runtime_(runtime), outer_(current()) {
    current() = this;
  }
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

  const char* handler() const { return handler_; }
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
    blocks_.push_back(Heap::global().take(args->size, most_alignment));
    Heap::spoil(blocks_.back());
    args->data = blocks_.back().data;
    return nullptr;
  }

  XLA_FFI_Error* give_back(XLA_FFI_DeviceMemory_Free_Args* args) {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].data != args->data) continue;
      if (blocks_[i].bytes != args->size)
        fail("scratch memory was given back with another size than it was asked for.");
      Heap::global().give_back(blocks_[i]);
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
  static constexpr size_t most_alignment = 16;

  // Set by tests of what happens when there is no memory.
  static size_t largest_block() { return static_cast<size_t>(setting("JZTREE_EMULATOR_LARGEST_BLOCK", -1)); }

  const char* handler_;
  const XLA_FFI_Api* runtime_;
  Call* outer_;
  std::vector<Heap::Piece> blocks_;
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

inline XLA_FFI_Error* as_on_a_gpu(const char* name, XLA_FFI_Handler* handler, XLA_FFI_CallFrame* frame) {
  Call call(name, frame->api);
  XLA_FFI_Api api = gpu_api(frame->api);
  XLA_FFI_CallFrame on_gpu = *frame;
  on_gpu.api = &api;
  CallBuffers buffers(&on_gpu);
  XLA_FFI_Error* error = handler(&on_gpu);
  frame->future = on_gpu.future;
  return error;
}

}  // namespace emulator
