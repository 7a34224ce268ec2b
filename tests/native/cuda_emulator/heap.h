// Memory of the emulated device: pieces with red zones around them, aligned no better than requested, with old
// contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "watch.h"

namespace emulator {

class Heap {
 public:
  static constexpr size_t red_zone = 64;
  static constexpr unsigned char guard = 0xc3, garbage = 0xa5, freed = 0xdd;

  struct Piece {
    unsigned char* data = nullptr;
    size_t bytes = 0;
    int size_class = 0;
  };

  // The memory of arguments, results and scratch; and the shared memory of blocks.
  static Heap& global();
  static Heap& shared();

  // Returns memory at a multiple of `alignment`, which is at most 128, but with the worst alignment to 256. Code that
  // aligns the address to 256 therefore loses as many bytes as possible at the start, and none are left over at the
  // end: the red zone begins right after its memory. The caller fills the memory.
  Piece take(size_t bytes, size_t alignment);
  // Ends the program if a kernel has written to the red zones.
  void give_back(const Piece& piece);

  // Makes the contents unpredictable for kernels: old contents if the seed is odd, otherwise garbage.
  static void spoil(const Piece& piece);

 private:
  explicit Heap(Watched::Range range) : next_(range.begin), end_(range.begin + range.bytes) {}
  unsigned char* whole(int size_class);

  std::mutex mutex_;
  std::vector<unsigned char*> free_[64];
  unsigned char *next_, *end_;
};

}  // namespace emulator
