#include "heap.h"

#include <cstring>

#include "fibers.h"

namespace emulator {

Heap& Heap::global() {
  static Heap heap(Watched::global_memory());
  return heap;
}

Heap& Heap::shared() {
  static Heap heap(Watched::shared_memory());
  return heap;
}

Heap::Piece Heap::take(size_t bytes, size_t alignment) {
  constexpr size_t most = 256;
  size_t room = bytes + 2 * most + 2 * red_zone;
  int size_class = 12;
  while (size_t{1} << size_class < room) ++size_class;
  Piece piece{whole(size_class) + most + alignment, bytes, size_class};
  std::memset(piece.data - red_zone, guard, red_zone);
  std::memset(piece.data + bytes, guard, red_zone);
  Watched::open(piece.data, bytes);
  return piece;
}

void Heap::give_back(const Piece& piece) {
  for (size_t i = 0; i < red_zone; ++i)
    if (piece.data[-1 - static_cast<std::ptrdiff_t>(i)] != guard || piece.data[piece.bytes + i] != guard)
      fail("a kernel wrote outside of its memory.");
  if (seed() % 2 == 0) std::memset(piece.data, freed, piece.bytes);
  Watched::close(piece.data, piece.bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  auto start = reinterpret_cast<uintptr_t>(piece.data) >> piece.size_class << piece.size_class;
  free_[piece.size_class].push_back(reinterpret_cast<unsigned char*>(start));
}

void Heap::spoil(const Piece& piece) {
  if (seed() % 2 == 0) std::memset(piece.data, garbage, piece.bytes);
}

// Returns a whole block of 2^size_class bytes, at a multiple of its size.
unsigned char* Heap::whole(int size_class) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<unsigned char*>& free = free_[size_class];
  if (!free.empty()) {
    unsigned char* old = free.back();
    free.pop_back();
    return old;
  }
  size_t bytes = size_t{1} << size_class;
  auto start = (reinterpret_cast<uintptr_t>(next_) + bytes - 1) & ~(bytes - 1);
  next_ = reinterpret_cast<unsigned char*>(start) + bytes;
  if (next_ > end_) fail("the emulated device has no more memory.");
  std::memset(next_ - bytes, garbage, bytes);
  return next_ - bytes;
}

}  // namespace emulator
