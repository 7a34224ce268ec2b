// Memory of the emulated device, as the library sees it that is compiled to watch every access (JZTREE_WATCHED;
// watch.cc). In the other one nothing is watched.
//
// The compiler's instrumentation for ThreadSanitizer (-fsanitize=thread) calls a function before each read and each
// write. These functions are ours, and not those of ThreadSanitizer's runtime, because threads of CUDA are many and
// their order is simple: within a launch there is none between blocks, __syncthreads orders all of a block, __syncwarp
// lanes of a warp, and nothing else orders anything. So what a thread knows of others is a time for each lane of its
// warp, and one for the block. The runtime, with a fiber a thread, takes 0.85 MB and one more entry in every clock for
// each: 1.7 GB and 0.5 ms a barrier for 8 blocks of 256 (GCC 12); and of each 8 bytes it remembers four accesses only.
//
// What is found ends the program with a sentence and the lines of the source:
// * Races: two threads come to the same bytes, at least one writes, nothing orders them, and not both accesses are
//   atomic or volatile. It does not take the order of this run to go wrong.
// * Accesses to the device's memory outside of all arguments, results and scratch of the call, and outside of what a
//   launch asked for as shared memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fibers.h"

namespace emulator {

class Watched {
 public:
  struct Range {
    unsigned char* begin;
    size_t bytes;
  };

  static Range global_memory() { return {memory(), global_bytes}; }
  static Range shared_memory() { return {memory() + global_bytes, shared_bytes}; }

#ifdef JZTREE_WATCHED
  // What kernels may use from now on, at a multiple of 16; and no longer.
  static void open(unsigned char* at, size_t bytes);
  static void close(unsigned char* at, size_t bytes);
  // Before an atomic operation of a thread.
  static void atomic(void* at, size_t bytes);
  // So many bytes of global memory are read and written for a handler, and not by kernels of ours.
  static void transfer(const char* handler, size_t read, size_t written);
#else
  static void open(unsigned char*, size_t) {}
  static void close(unsigned char*, size_t) {}
  static void atomic(void*, size_t) {}
  static void transfer(const char*, size_t, size_t) {}
#endif

 private:
  static constexpr size_t global_bytes = size_t{16} << 30, shared_bytes = size_t{1} << 30;

  static unsigned char* memory() {
    static unsigned char* const reserved = reserve(global_bytes + shared_bytes);
    return reserved;
  }
};

}  // namespace emulator
