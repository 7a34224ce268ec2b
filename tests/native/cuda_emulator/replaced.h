// Kernels that nvcc has compiled, in place of those that the host's compiler has compiled from the same sources.
//
// tests/ptx.py translates nvcc's intermediate code (PTX) to C++ for a separate library. This library gets the
// operations of a GPU's threads as function pointers.
#pragma once

#include <cstdint>

namespace emulator {

// The operations of a thread. Shuffles are of one word; a lane without a source (-1) gets its own word.
struct Machine {
  uint32_t (*thread)(), (*block)(), (*threads)(), (*blocks)();
  unsigned char* (*shared_memory)();
  void (*sync_block)();
  void (*sync_warp)(uint32_t mask);
  uint32_t (*shuffle)(uint32_t mask, uint32_t value, int32_t source);
  uint32_t (*vote)(uint32_t mask, bool predicate);
  void (*before_atomic)();
};

// A translated kernel. parameters: the addresses of its parameters.
using Replacement = void (*)(const Machine&, unsigned char* const* parameters);

const Machine& machine();

// The translation of a kernel, or null.
Replacement replacement_of(const void* kernel);

}  // namespace emulator
