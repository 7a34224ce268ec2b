// The threads of one CUDA block as fibers of one host thread, and the shared memory of the block.
//
// A fiber runs until it reaches a barrier of its block or of lanes of its warp; then the next one runs.
//
// Errors that a GPU would not report end the program with a message: lanes that meet at different operations, lanes in
// a mask that have left the kernel or never arrive, barriers that part of a block never reaches, and writes past the
// end of the requested shared memory.
#pragma once

#include <functional>
#include <random>
#include <vector>

#include "counts.h"
#include "fibers.h"
#include "shared_memory.h"

namespace emulator {

struct Launch {
  uint32_t number;      // unique to the launch
  const char* handler;  // the handler that launched it
  unsigned blocks, threads;
  size_t shared_bytes;
  std::function<void()> body;
};

class Block {
 public:
  Block() = default;
  Block(const Block&) = delete;

  // The block of the calling thread.
  JZTREE_UNWATCHED static Block& current() { return *Stacks::current()->block; }

  // Prepares the threads of the block; `pass` runs them.
  void begin(unsigned index, const Launch& launch, std::mt19937* random);

  // Runs each ready thread once, until it has to wait. Returns whether any thread has not finished.
  bool pass();

  bool is_alive() const { return live_ > 0; }
  JZTREE_UNWATCHED unsigned index() const { return index_; }
  JZTREE_UNWATCHED const Launch& launch() const { return *launch_; }
  SharedMemory& shared() { return shared_; }
  LaneCounts& counts() { return counts_; }
  Fiber& thread(int i) { return *fibers_[static_cast<size_t>(i)]; }

  void sync_block();
  // A barrier of the lanes in the mask. The last lane to arrive carries out the operation for every lane.
  Fiber& meet(uint32_t mask, Operation operation);
  // Called before an effect that other threads, of this block or of others, may see immediately.
  void may_interleave();

 private:
  static void start();
  void end();
  void hand_over(Wait wait);
  void switch_out(Fiber& me);
  bool release_block();
  Fiber* lane_beside(const Fiber& me, int lane);
  bool all_here(const Fiber& last);
  void serve(const Fiber& last);
  void tell_each_other(const Fiber& last);

  unsigned index_ = 0;
  const Launch* launch_ = nullptr;
  std::vector<Fiber*> fibers_;
  std::vector<int> order_;
  std::mt19937* random_ = nullptr;
  void* host_ = nullptr;
  int live_ = 0;
  SharedMemory shared_;
  LaneCounts counts_;
};

}  // namespace emulator
