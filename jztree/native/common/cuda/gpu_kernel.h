// Kernels on GPUs, for code that needs no CUDA compiler.
#pragma once

#include "common/kernel.h"

namespace jztree {

class Queue;
using WorkOnGpu = void (*)(Queue&, Arguments&);

// The function that XLA calls to put work on a GPU; it lives as long as the program.
xla::ffi::Ffi* handler_of(const char* kernel, WorkOnGpu work, bool capturable);

class GpuKernel : public Kernel {
 public:
  GpuKernel(const char* name, WorkOnGpu work, bool capturable)
      : Kernel(name, handler_of(name, work, capturable)), work_(work) {}

  WorkOnGpu work() const { return work_; }

 private:
  WorkOnGpu work_;
};

// Put the work on a CUDA stream. scratch: the memory for its work arrays.
void put_on_stream(WorkOnGpu work, void* stream, const Buffer& scratch, Arguments& arguments);

}  // namespace jztree
