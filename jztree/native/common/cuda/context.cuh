// Kernels on GPUs. They use a `Queue`, which puts work on the stream of the call.
//
// The memory for work arrays is an additional result of the call, the last one. So XLA allocates it before the program
// runs, and no call can run out of memory in the middle of a sequence of collectives. Python determines its size at
// trace time (scratch.cu): it runs the same function with a Queue that only measures. So everything that the host does,
// including the sizes of work arrays, must depend only on shapes and attributes. The host must not read numbers in an
// array. This also allows XLA to record the work in a command buffer and replay it (kernel.h).
//
// Before the program runs, XLA lets every call prepare itself. The same function then runs with a Queue that only loads
// kernels (gpu_kernel.h).
#pragma once

#include "gpu_kernel.h"
#include "queue.cuh"

namespace jztree {

class GpuRowPadder : public RowPadder {
 public:
  explicit GpuRowPadder(Queue& queue) : queue_(queue) {}
  void* memory(int64_t bytes) override { return queue_.scratch<char>(bytes); }
  void copy_rows(const void* source, int64_t from, void* target, int64_t to, int64_t rows) override;

 private:
  Queue& queue_;
};

// Copy arguments to the results that continue them, if these are in different memory.
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
