// Information about the library for Python, through ctypes.

#include <algorithm>
#include <cstdint>
#include <string>

#include "common/kernel.h"
#include "instruction_set.h"
#include "parallel.h"
#include "progress.h"

#define JZTREE_EXPORT __attribute__((visibility("default")))

extern "C" {

// The instruction set that this copy of the library was compiled for.
JZTREE_EXPORT const char* jztree_instruction_set() { return JZTREE_INSTRUCTION_SET; }

// Python calls this function of the copy for the most basic instruction set, which runs on every processor.
JZTREE_EXPORT const char* jztree_best_instruction_set() { return jztree::best_instruction_set(); }

// The names of the kernels in this library, each followed by a comma.
JZTREE_EXPORT const char* jztree_kernels() { return jztree::kernel_names(); }

// Upper limit on the threads of one kernel; 0 means as many as XLA's pool has.
JZTREE_EXPORT void jztree_set_thread_limit(int limit) {
  jztree::thread_limit().store(std::max(0, limit), std::memory_order_relaxed);
}

// The number of particles that long kernels have finished since the library was loaded.
JZTREE_EXPORT int64_t jztree_particles_done() { return jztree::particles_done().load(std::memory_order_relaxed); }

}  // extern "C"
