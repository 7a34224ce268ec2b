// XLA's header, with a stream and scratch memory for handlers on the host, where XLA has neither.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "cuda_runtime.h"
#include_next "xla/ffi/api/ffi.h"

namespace xla::ffi {

class EmulatedScratchAllocator {
 public:
  std::optional<void*> Allocate(size_t size, size_t = 1) {
    // Garbage, as on a GPU.
    memory_.emplace_back(std::malloc(size + 64));
    std::memset(memory_.back().get(), 0xa5, size + 64);
    return memory_.back().get();
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::vector<std::unique_ptr<void, Free>> memory_;
};

template <>
struct CtxDecoding<EmulatedScratchAllocator> {
  using Type = EmulatedScratchAllocator;
  static std::optional<Type> Decode(const XLA_FFI_Api*, XLA_FFI_ExecutionContext*, DiagnosticEngine&) { return Type(); }
};

template <>
struct CtxDecoding<PlatformStream<cudaStream_t>> {
  using Type = cudaStream_t;
  static std::optional<Type> Decode(const XLA_FFI_Api*, XLA_FFI_ExecutionContext*, DiagnosticEngine&) {
    return static_cast<cudaStream_t>(nullptr);
  }
};

}  // namespace xla::ffi

#define ScratchAllocator EmulatedScratchAllocator
