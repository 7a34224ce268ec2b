// Shared memory of a block: `__shared__` variables of kernels, and the memory that a launch requests.
//
// A __shared__ variable is compiled as a thread_local variable of the host. Compiled code finds such a variable by a
// call of __tls_get_addr with an offset into the library's storage. This library defines that function, and returns the
// storage of the fiber's block. So each active block has its own variables, and the emulator can overwrite them before
// a block begins.
//
// Shared memory starts filled with garbage, because its contents are undefined. The requested memory has the worst
// alignment that CUDA allows.
#pragma once

#include <cstddef>

#include "heap.h"

namespace emulator {

class SharedMemory {
 public:
  // The least that a block may have on a GPU of compute capability 7.5 or newer: 64 kB on 7.5. A launch without
  // permission gets 48 kB everywhere. Both include the kernel's __shared__ variables, which take 8 kB at most.
  static constexpr size_t declared_bytes = 8 << 10, most_bytes = (64 << 10) - declared_bytes;
  static constexpr size_t bytes_without_permission = (48 << 10) - declared_bytes;

  void begin(size_t bytes);
  // Ends the program if a kernel has written past the end of the requested memory.
  void end() const;

  unsigned char* asked_for() { return asked_for_.data; }
  unsigned char* declared();

 private:
  Heap::Piece declared_, asked_for_;
  size_t bytes_ = 0;
  bool used_ = false;
};

}  // namespace emulator
