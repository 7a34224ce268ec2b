// The threads of one CUDA block as fibers of one thread of the host, and its shared memory.
//
// A fiber runs until it comes to a barrier, of its block or of lanes of its warp; then the next one runs.
//
// What no GPU would report is an error here, and ends the program with a sentence: lanes that meet at different
// operations, lanes named in a mask that have left the kernel or never come, barriers that part of a block never
// reaches, writes past the end of the shared memory that was asked for.
#pragma once

#include <functional>
#include <random>
#include <vector>

#include "counts.h"
#include "fibers.h"
#include "shared_memory.h"

namespace emulator {

struct Launch {
  uint32_t number;      // no other launch has it
  const char* handler;  // that has made it
  unsigned blocks, threads;
  size_t shared_bytes;
  std::function<void()> body;
};

class Block {
 public:
  Block() = default;
  Block(const Block&) = delete;

  // Where the thread runs that calls this.
  JZTREE_UNWATCHED static Block& current() { return *Stacks::current()->block; }

  // Makes its threads ready; `pass` runs them.
  void begin(unsigned index, const Launch& launch, std::mt19937* random);

  // Runs every thread that can until it has to wait, once. Returns whether any is left.
  bool pass();

  bool is_alive() const { return live_ > 0; }
  JZTREE_UNWATCHED unsigned index() const { return index_; }
  JZTREE_UNWATCHED const Launch& launch() const { return *launch_; }
  SharedMemory& shared() { return shared_; }
  LaneCounts& counts() { return counts_; }
  Fiber& thread(int i) { return *fibers_[static_cast<size_t>(i)]; }

  void sync_block();
  // Of the lanes of a warp that the mask names. The last one to arrive serves all of them.
  Fiber& meet(uint32_t mask, Operation operation);
  // Before what other threads, of this block or of others, may see at once.
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
