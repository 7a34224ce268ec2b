// Scratch memory from XLA's own allocator, asked for through the C interface of its FFI: the class that XLA wraps
// around that drops the reason of a refusal.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace jztree {

// Memory of the device that a handler is called for, given back when the handler returns. XLA reuses it for what comes
// after on the stream.
class DeviceMemory {
 public:
  DeviceMemory(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* context) : api_(api), context_(context) {}
  DeviceMemory(DeviceMemory&& other) noexcept
      : api_(other.api_), context_(other.context_), blocks_(std::move(other.blocks_)) {
    other.blocks_.clear();
  }
  DeviceMemory& operator=(DeviceMemory&&) = delete;

  ~DeviceMemory() {
    for (const Block& block : blocks_) {
      XLA_FFI_DeviceMemory_Free_Args args{};
      args.struct_size = XLA_FFI_DeviceMemory_Free_Args_STRUCT_SIZE;
      args.ctx = context_;
      args.size = block.bytes;
      args.data = block.data;
      // The results are there, and nobody could do anything about a block that was not taken back.
      if (XLA_FFI_Error* error = api_->XLA_FFI_DeviceMemory_Free(&args)) xla::ffi::internal::DestroyError(api_, error);
    }
  }

  // At least `bytes` bytes, undefined at first, at a multiple of `alignment`.
  void* allocate(size_t bytes) {
    XLA_FFI_DeviceMemory_Allocate_Args args{};
    args.struct_size = XLA_FFI_DeviceMemory_Allocate_Args_STRUCT_SIZE;
    args.ctx = context_;
    args.size = std::max<size_t>(1, bytes) + alignment - runtime_alignment;
    args.alignment = runtime_alignment;
    if (XLA_FFI_Error* error = api_->XLA_FFI_DeviceMemory_Allocate(&args)) {
      std::string words = xla::ffi::internal::GetErrorMessage(api_, error);
      xla::ffi::internal::DestroyError(api_, error);
      throw std::runtime_error("the runtime gave no " + std::to_string(args.size) +
                               " bytes of GPU memory for work arrays; it says: " + words);
    }
    blocks_.push_back({args.data, args.size});
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(args.data) + alignment - 1) & ~(alignment - 1));
  }

 private:
  struct Block {
    void* data;
    size_t bytes;
  };

  // What CUB asks for; and the most that XLA's FFI grants (XLA_FFI_DeviceMemory_Allocate in xla/ffi/ffi_api.cc).
  static constexpr uintptr_t alignment = 256;
  static constexpr size_t runtime_alignment = 16;

  const XLA_FFI_Api* api_;
  XLA_FFI_ExecutionContext* context_;
  std::vector<Block> blocks_;
};

}  // namespace jztree

template <>
struct xla::ffi::CtxDecoding<jztree::DeviceMemory> {
  using Type = jztree::DeviceMemory;
  static std::optional<Type> Decode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* context, DiagnosticEngine&) {
    return Type(api, context);
  }
};
