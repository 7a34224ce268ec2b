// Memory of the emulated device: pieces with red zones around them, aligned no better than was asked for, that begin
// with what somebody else left there.
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

  // What arguments, results and scratch are in; and what blocks have for themselves.
  static Heap& global();
  static Heap& shared();

  // At a multiple of `alignment`, which is at most 128, and as far before the next multiple of 256 as that allows:
  // whoever aligns inside of it loses all that they may lose, before what they use and not behind it, so that the red
  // zone begins where theirs ends. The caller fills it.
  Piece take(size_t bytes, size_t alignment);
  // Ends the program if the red zones have been written to.
  void give_back(const Piece& piece);

  // What no kernel may count on: with an odd seed what the last one left, else garbage.
  static void spoil(const Piece& piece);

 private:
  explicit Heap(Watched::Range range) : next_(range.begin), end_(range.begin + range.bytes) {}
  unsigned char* whole(int size_class);

  std::mutex mutex_;
  std::vector<unsigned char*> free_[64];
  unsigned char *next_, *end_;
};

}  // namespace emulator
