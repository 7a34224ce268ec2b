// Kernels on the CPU. They use `Parallel`, loops on XLA's threads.
#pragma once

#include <deque>

#include "common/kernel.h"
#include "memory.h"
#include "parallel.h"

namespace jztree {

using WorkOnCpu = void (*)(const Parallel&, Arguments&);

// The function that XLA calls to run work; it lives as long as the program.
xla::ffi::Ffi* handler_of(const char* kernel, WorkOnCpu work);

class CpuKernel : public Kernel {
 public:
  // Capture only matters on GPUs.
  CpuKernel(const char* name, WorkOnCpu work, bool capturable) : Kernel(name, handler_of(name, work)) {
    (void)capturable;
  }
};

class CpuRowPadder : public RowPadder {
 public:
  explicit CpuRowPadder(const Parallel& parallel) : parallel_(parallel) {}
  void* memory(int64_t bytes) override;
  void copy_rows(const void* source, int64_t from, void* target, int64_t to, int64_t rows) override;

 private:
  const Parallel& parallel_;
  std::deque<Scratch<char>> memory_;
};

// Copy arguments to the results that continue them, if these are in different memory.
void continue_results(const Arguments& arguments);

}  // namespace jztree

#define JZTREE_BACKEND_KERNEL(name, Runner, capturable)                                        \
  static void work_of_##name(const jztree::Parallel& parallel, jztree::Arguments& arguments) { \
    jztree::CpuRowPadder padder(parallel);                                                     \
    Runner::run(arguments, padder, [&](const auto& in) {                                       \
      jztree::continue_results(arguments);                                                     \
      name(parallel, in);                                                                      \
    });                                                                                        \
  }                                                                                            \
  JZTREE_DEFINE_KERNEL(name, jztree::CpuKernel, capturable)
