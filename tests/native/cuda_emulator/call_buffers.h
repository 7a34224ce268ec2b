// Arguments and results of a call in the memory of the emulated device, as XLA for GPUs allocates them: arguments are
// aligned to 16 bytes and results to 128 (xla/service/gpu/gpu_constants.h), and no better. An array without elements
// has no memory. Each buffer has red zones around it, and results start with old contents. If XLA lets a result share
// the memory of an argument, it also does so here.
//
// A handler that writes to an argument ends the program with a message.
#pragma once

#include <cstdint>
#include <vector>

#include "heap.h"
#include "xla/ffi/api/c_api.h"

namespace emulator {

class CallBuffers {
 public:
  // The frame has copies of its buffers until this object is destroyed.
  explicit CallBuffers(XLA_FFI_CallFrame* frame);
  CallBuffers(const CallBuffers&) = delete;
  ~CallBuffers();

 private:
  struct Copy {
    void* of;
    Heap::Piece piece;
    bool is_result, replaced;
  };

  void copy(void** buffers, int64_t count, bool results);
  void* on_device(const XLA_FFI_Buffer& buffer, bool result);

  std::vector<Copy> copies_;
  std::vector<XLA_FFI_Buffer> argument_buffers_, result_buffers_;
  std::vector<void*> arguments_, results_;
};

}  // namespace emulator
