// Kernels on GPUs. They use a `Queue`, which puts work on the stream of the call.
//
// The memory for work arrays is an additional result of the call, the last one. So XLA plans it before anything runs,
// and no call can run out of memory in the middle of a sequence of collectives. Python requests its size when it traces
// (scratch.cu): the same function then runs with a Queue that only measures. So all actions of the host, not only the
// sizes of work arrays, must follow from shapes and attributes; the host must not read numbers in an array. This also
// allows XLA to record the work in a command buffer and replay it (kernel.h).
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
