// Imitates XLA's GPU runtime for handlers. XLA passes a table of functions with each call. Here, GPU functions replace
// the entries that the CPU runtime rejects; they behave like those in xla/ffi/ffi_api.cc. This runtime is stricter than
// XLA, to enforce the library's own rules:
//
// - Arguments and results are on the device (call_buffers.h), and so are work arrays, whose memory is the last result.
//   A handler must not write between work arrays. It cannot allocate other memory.
// - Work on the stream runs when the handler waits or after it returns. On a GPU, work may also start this late, in
//   particular from a command buffer.
// - A handler that declares that it may be recorded must not wait, and must put work on the stream.
// - XLA calls the initializer of a kernel first. The initializer must load each kernel that the call launches
//   (loading.h), and must not put work on the stream.
// - Each call has a separate stream and no thread pool.
//
// Errors that XLA would not detect, such as a write past the end, end the program with a message.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "call_buffers.h"
#include "heap.h"
#include "loading.h"
#include "xla/ffi/api/c_api.h"

namespace emulator {

// The number of times that the host has waited for the GPU.
inline std::atomic<int64_t>& waits() {
  static std::atomic<int64_t> number{0};
  return number;
}

// The number of kernels, copies and fills that calls have put on streams.
inline std::atomic<int64_t>& operations() {
  static std::atomic<int64_t> number{0};
  return number;
}

// One call of a handler.
class Call {
 public:
  // recorded: whether XLA may record the call. initialized: whether an initializer has loaded its kernels.
  Call(const char* handler, const XLA_FFI_Api* runtime, bool recorded, bool initialized)
      : handler_(handler), runtime_(runtime), recorded_(recorded), initialized_(initialized), outer_(current()) {
    current() = this;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() { current() = outer_; }

  static Call*& current() {
    static thread_local Call* call = nullptr;
    return call;
  }

  const char* handler() const { return handler_; }
  // Every call has a different stream, so a handler must not store a stream for a later call.
  void* stream() { return this; }

  void put(std::function<void()> work) {
    empty_ = false;
    ++operations();
    work_.push_back(std::move(work));
  }
  bool is_empty() const { return empty_; }
  void expect_work() const {
    if (recorded_ && empty_) fail("a handler that XLA may record in a command buffer puts no work on the stream.");
  }

  // Called when a kernel is put on the stream.
  void use(const void* kernel) {
    if (initialized_ && !Loaded::all().has(kernel))
      fail("a kernel is loaded during the call, when other ranks may be waiting for this one.");
    Loaded::all().add(kernel);
  }
  void expect_loaded_kernels() { initialized_ = true; }

  void wait() {
    if (recorded_) fail("a handler that XLA may record in a command buffer waits for the GPU.");
    ++waits();
    run();
  }

  // Runs all work on the stream.
  void run() {
    for (const auto& work : work_) work();
    work_.clear();
    for (auto [begin, end] : gaps_)
      for (uintptr_t at = begin; at < end; ++at)
        if (*reinterpret_cast<unsigned char*>(at) != Heap::guard) fail("a kernel wrote outside of its memory.");
  }

  // Forbids the use of the bytes from the end of a work array to the start of the next. end: a multiple of 16.
  void watch_gap(uintptr_t begin, uintptr_t end) {
    std::memset(reinterpret_cast<void*>(begin), Heap::guard, end - begin);
    gaps_.push_back({begin, end});
    uintptr_t even = (begin + 15) & ~uintptr_t{15};
    Watched::close(reinterpret_cast<unsigned char*>(even), end - even);
  }

  XLA_FFI_Error* error(XLA_FFI_Error_Code code, const std::string& message) {
    XLA_FFI_Error_Create_Args args{};
    args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
    args.errc = code;
    args.message = message.c_str();
    return runtime_->XLA_FFI_Error_Create(&args);
  }

 private:
  const char* handler_;
  const XLA_FFI_Api* runtime_;
  bool recorded_, initialized_, empty_ = true;
  Call* outer_;
  std::vector<std::function<void()>> work_;
  std::vector<std::pair<uintptr_t, uintptr_t>> gaps_;
};

// The function table of the runtime that called the handler, with the functions for GPUs.
inline XLA_FFI_Api gpu_api(const XLA_FFI_Api* runtime) {
  XLA_FFI_Api api = *runtime;
  api.struct_size = sizeof(XLA_FFI_Api);
  api.XLA_FFI_Stream_Get = +[](XLA_FFI_Stream_Get_Args* args) -> XLA_FFI_Error* {
    args->stream = Call::current()->stream();
    return nullptr;
  };
  api.XLA_FFI_DeviceMemory_Allocate = +[](XLA_FFI_DeviceMemory_Allocate_Args*) -> XLA_FFI_Error* {
    fail("a handler allocates memory while it runs, when other ranks may be waiting for this one.");
  };
  api.XLA_FFI_ThreadPool_Schedule = +[](XLA_FFI_ThreadPool_Schedule_Args*) {
    return Call::current()->error(XLA_FFI_Error_Code_UNIMPLEMENTED, "XLA FFI CPU context is not available");
  };
  api.XLA_FFI_ThreadPool_NumThreads = +[](XLA_FFI_ThreadPool_NumThreads_Args*) {
    return Call::current()->error(XLA_FFI_Error_Code_UNIMPLEMENTED, "XLA FFI CPU context is not available");
  };
  return api;
}

// The function that XLA calls.
using Handler = std::function<XLA_FFI_Error*(XLA_FFI_CallFrame*)>;

// Whether XLA may record what the handler does in a command buffer, and replay that instead of calling it again.
inline bool may_be_recorded(const Handler& handler, const XLA_FFI_Api* api) {
  XLA_FFI_Metadata metadata{};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension{};
  extension.extension_base = {XLA_FFI_Metadata_Extension_STRUCT_SIZE, XLA_FFI_Extension_Metadata, nullptr};
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = api;
  frame.extension_start = &extension.extension_base;
  if (handler(&frame)) fail("a handler does not report its traits.");
  return metadata.traits & XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE;
}

// The stage before the call, in which buffers have addresses but no contents.
inline void initialize(const char* name, const Handler& initializer, const XLA_FFI_CallFrame* frame) {
  Call call(name, frame->api, false, false);
  XLA_FFI_Api api = gpu_api(frame->api);
  XLA_FFI_CallFrame on_gpu = *frame;
  on_gpu.api = &api;
  on_gpu.stage = XLA_FFI_ExecutionStage_INITIALIZE;
  if (initializer(&on_gpu)) fail("an initializer reports an error before the call itself.");
  if (!call.is_empty()) fail("an initializer puts work on the stream.");
}

inline XLA_FFI_Error* as_on_a_gpu(const char* name, const Handler& handler, XLA_FFI_CallFrame* frame,
                                  const Handler& initializer = nullptr) {
  if (frame->extension_start) return handler(frame);  // XLA queries the traits of the handler
  if (initializer) initialize(name, initializer, frame);
  Call call(name, frame->api, may_be_recorded(handler, frame->api), initializer != nullptr);
  XLA_FFI_Api api = gpu_api(frame->api);
  XLA_FFI_CallFrame on_gpu = *frame;
  on_gpu.api = &api;
  CallBuffers buffers(&on_gpu);
  XLA_FFI_Error* error = handler(&on_gpu);
  frame->future = on_gpu.future;
  if (!error) call.expect_work();
  call.run();
  return error;
}

}  // namespace emulator
