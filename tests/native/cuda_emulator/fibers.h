// Fibers: threads of CUDA, of which one at a time runs in a thread of the host, until it switches to another.
//
// A fiber is found from its stack: all stacks lie in one reserved piece of the address space, each at a multiple of its
// size, and begin with the fiber's own record. So code that runs on a fiber knows which one it is without asking
// anything that belongs to the thread of the host.
#pragma once

#include <cstddef>
#include <cstdint>

// What the compiler puts in to watch memory (watch.h) is not wanted in the emulator's own work.
#define JZTREE_UNWATCHED __attribute__((no_sanitize("thread")))

namespace emulator {

// Ends the program.
[[noreturn]] void fail(const char* sentence);

// A number from the environment.
long long setting(const char* name, long long otherwise);

// Another number tries other orders; 0 is the plain one, thread by thread and block by block.
int seed();

// Whether the barriers and the fills of memory that a function of the library asks for are left out where a handler
// calls it, to see that they are missed: JZTREE_EMULATOR_WITHOUT=handler:function.
bool is_left_out(const char* handler, const char* function);

// Address space that costs memory only where it is used.
unsigned char* reserve(size_t bytes);

// Leaves one stack, which can be returned to, for another.
extern "C" void jztree_switch_fiber(void** save_stack, void* load_stack);

class Block;

enum class Wait : uint8_t { ready, block, warp, done };
enum class Operation : uint8_t { sync, shuffle, ballot };

constexpr int warp_lanes = 32;

struct Fiber {
  void* stack_pointer;
  Block* block;
  int thread;
  Wait wait;
  // What a lane brings to its warp, and takes away.
  Operation operation;
  uint32_t mask;
  int source;  // of a shuffle; negative: keep one's own
  bool predicate;
  alignas(16) unsigned char value[16];
  alignas(16) unsigned char result[16];
  uint32_t ballot;
  // What the thread knows of the others in its warp, in the time that each counts by how often it synchronised; and
  // when it was at a barrier last. For the search for races (watch.h).
  uint32_t now, at_barrier, known[warp_lanes];

  JZTREE_UNWATCHED int lane() const { return thread & (warp_lanes - 1); }
};

class Stacks {
 public:
  static constexpr size_t bytes = 256 << 10;

  // One that nobody has had.
  static Fiber* take();
  // Where a fiber's stack begins that is to call `body` when it is switched to.
  static void* ready(Fiber* fiber, void (*body)());

  // The fiber that this runs on; null if it is none.
  JZTREE_UNWATCHED static Fiber* current() {
    auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    return here - first_ < count * bytes ? reinterpret_cast<Fiber*>(here & ~(bytes - 1)) : nullptr;
  }

 private:
  static constexpr size_t count = size_t{1} << 18;

  static const uintptr_t first_;
};

}  // namespace emulator
