// Kernels on GPUs, for code that needs no CUDA compiler.
#pragma once

#include "common/kernel.h"

namespace jztree {

class Queue;
using WorkOnGpu = void (*)(Queue&, Arguments&);

// The function that XLA calls to put work on a GPU; it lives as long as the program.
xla::ffi::Ffi* handler_of(const char* kernel, WorkOnGpu work, bool capturable);
// The function that XLA calls on every device before any rank starts to run the program. It loads the GPU code of the
// work. CUDA otherwise loads code at the first launch and waits for the GPU. If a collective runs there at that time,
// and its other ranks wait for this host thread in turn, the program hangs.
xla::ffi::Ffi* initializer_of(const char* kernel, WorkOnGpu work);

class GpuKernel : public Kernel {
 public:
  GpuKernel(const char* name, WorkOnGpu work, bool capturable)
      : Kernel(name, handler_of(name, work, capturable), initializer_of(name, work)), work_(work) {}

  WorkOnGpu work() const { return work_; }

 private:
  WorkOnGpu work_;
};

// Put the work on a CUDA stream. scratch: the memory for its work arrays.
void put_on_stream(WorkOnGpu work, void* stream, const Buffer& scratch, Arguments& arguments);
// Load the kernels that the work launches, and run none.
void load_kernels(WorkOnGpu work, const Buffer& scratch, Arguments& arguments);
// The number of the GPU that is current in this thread; -1 if CUDA does not give it.
int current_gpu();

}  // namespace jztree
