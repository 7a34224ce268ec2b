// Shared memory of a block: what kernels declare `__shared__`, and what a launch asks for.
//
// A __shared__ variable is compiled as one of the host thread's own (thread_local). The compiler finds those by calling
// __tls_get_addr with an offset into the library's storage; this library has its own function of that name, which
// gives fibers the storage of their block. So each of the blocks that are alive at once has its own, and it can be
// overwritten before a block begins.
//
// No block may count on what it finds: it is filled with garbage. What was asked for is aligned as badly as CUDA
// allows.
#pragma once

#include <cstddef>

#include "heap.h"

namespace emulator {

class SharedMemory {
 public:
  static constexpr size_t most_bytes = 100 << 10;

  void begin(size_t bytes);
  // Ends the program if something was written behind what was asked for.
  void end() const;

  unsigned char* asked_for() { return asked_for_.data; }
  unsigned char* declared();

 private:
  Heap::Piece declared_, asked_for_;
  size_t bytes_ = 0;
  bool used_ = false;
};

}  // namespace emulator
