// Kernels on GPUs. What they work with is `Queue`, work that is put on the stream of the call.
//
// Memory for work arrays is one more result of the call, the last, so that XLA plans it before anything runs, and no
// call can fail for want of memory in the middle of a sequence of collectives. How large it must be, Python asks when
// it traces (scratch.cu): the same function is run with a Queue that only measures. So all that the host does, and not
// only the sizes of work arrays, must follow from shapes and attributes; it must not look at a number in an array. That
// is also what lets XLA record the work in a command buffer and replay it (kernel.h).
#pragma once

#include "common/kernel.h"
#include "queue.cuh"

namespace jztree {

using WorkOnGpu = void (*)(Queue&, Arguments&);

// What XLA calls to have work put on a GPU; it stays for as long as the program.
xla::ffi::Ffi* handler_of(const char* kernel, WorkOnGpu work, bool capturable);

class GpuKernel : public Kernel {
 public:
  GpuKernel(const char* name, WorkOnGpu work, bool capturable)
      : Kernel(name, handler_of(name, work, capturable)), work_(work) {}

  WorkOnGpu work() const { return work_; }

 private:
  WorkOnGpu work_;
};

class GpuRowPadder : public RowPadder {
 public:
  explicit GpuRowPadder(Queue& queue) : queue_(queue) {}
  void* memory(int64_t bytes) override { return queue_.scratch<char>(bytes); }
  void copy_rows(const void* source, int64_t from, void* target, int64_t to, int64_t rows) override;

 private:
  Queue& queue_;
};

// Where the results that go on with what an argument holds hold something else.
void continue_results(Queue& queue, const Arguments& arguments);

}  // namespace jztree

#define JZTREE_BACKEND_KERNEL(name, Runner, capturable)                            \
  static void work_of_##name(jztree::Queue& queue, jztree::Arguments& arguments) { \
    jztree::GpuRowPadder padder(queue);                                            \
    Runner::run(arguments, padder, [&](const auto& in) {                           \
      jztree::continue_results(queue, arguments);                                  \
      name(queue, in);                                                             \
    });                                                                            \
  }                                                                                \
  JZTREE_DEFINE_KERNEL(name, jztree::GpuKernel, capturable)
