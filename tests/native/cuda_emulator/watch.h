// Memory of the emulated device, in the library compiled to watch every access (JZTREE_WATCHED; watch.cc). The other
// library watches nothing.
//
// The compiler's instrumentation for ThreadSanitizer (-fsanitize=thread) calls a function before each read and each
// write. We define these functions instead of using ThreadSanitizer's runtime, because CUDA has many threads in a
// simple order: within a launch, blocks are not ordered, __syncthreads orders all threads of a block, __syncwarp orders
// lanes of a warp, and nothing else orders anything. So a thread needs to know only a time for each lane of its warp,
// and one for the block. The runtime of ThreadSanitizer would need a fiber per thread, with 0.85 MB each and an entry
// in the clock of every other fiber: 1.7 GB and 0.5 ms per barrier for 8 blocks of 256 threads (GCC 12). It also
// remembers only four accesses per 8 bytes.
//
// These errors end the program with a message and the source lines:
// * Races: two threads access the same bytes, at least one thread writes, nothing orders the accesses, and at least one
//   access is neither atomic nor volatile. The watcher finds a race even if the order of this run is harmless.
// * Accesses to the device's memory outside all arguments, results and scratch of the call, and outside the shared
//   memory that the launch requested.
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
  // Makes memory at a multiple of 16 accessible to kernels; and inaccessible again.
  static void open(unsigned char* at, size_t bytes);
  static void close(unsigned char* at, size_t bytes);
  // Called before an atomic operation of a thread.
  static void atomic(void* at, size_t bytes);
  // Counts bytes of global memory that are read and written for a handler, but not by our kernels.
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
