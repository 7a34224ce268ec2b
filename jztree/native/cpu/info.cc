// What Python asks the library itself, through ctypes.

#include <algorithm>
#include <string>

#include "parallel.h"

#define JZTREE_EXPORT __attribute__((visibility("default")))

extern "C" {

// The instruction set that this copy of the library was compiled for.
JZTREE_EXPORT const char* jztree_instruction_set() { return JZTREE_INSTRUCTION_SET; }

// The best instruction set of those the library is built for that this machine has. Asked of the copy for the plainest
// one, which runs anywhere.
JZTREE_EXPORT const char* jztree_best_instruction_set() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
            __builtin_cpu_supports("fma");
  bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vl");
  return v4 ? "x86-64-v4" : v3 ? "x86-64-v3" : "x86-64-v2";
#else
  return JZTREE_INSTRUCTION_SET;
#endif
}

// Upper limit on the threads of one kernel; 0 means as many as XLA's pool has.
JZTREE_EXPORT void jztree_set_thread_limit(int limit) {
  jztree::thread_limit().store(std::max(0, limit), std::memory_order_relaxed);
}

}  // extern "C"
