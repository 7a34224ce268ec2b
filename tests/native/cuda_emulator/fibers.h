// Fibers: CUDA threads that take turns in one host thread; a fiber runs until it switches to another one.
//
// All stacks are in one reserved range of the address space. Each stack starts at a multiple of its size and holds the
// record of its fiber there. So code finds its fiber from the stack pointer, without thread-local variables of the
// host.
#pragma once

#include <cstddef>
#include <cstdint>

// Switches off the instrumentation of memory accesses (watch.h) for the emulator's own code.
#define JZTREE_UNWATCHED __attribute__((no_sanitize("thread")))

namespace emulator {

// Prints a message and ends the program.
[[noreturn]] void fail(const char* sentence);

// The number in an environment variable, or `otherwise` if it is not set.
long long setting(const char* name, long long otherwise);

// Each seed tries another order of the threads; 0 is the plain order, thread by thread and block by block.
int seed();

// Whether to skip the barriers and memory fills of a function of the library when a handler calls it. Tests use this to
// check that the emulator detects the error: JZTREE_EMULATOR_WITHOUT=handler:function.
bool is_left_out(const char* handler, const char* function);

// Reserves address space; only the pages in use cost memory.
unsigned char* reserve(size_t bytes);

// Saves the current stack pointer, to return to it later, and switches to another stack.
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
  // The input and the result of a lane in an operation of its warp.
  Operation operation;
  uint32_t mask;
  int source;  // lane to read in a shuffle; negative: the own value
  bool predicate;
  alignas(16) unsigned char value[16];
  alignas(16) unsigned char result[16];
  uint32_t ballot;
  // For race detection (watch.h). Each thread counts its synchronisations as its time: `now` is the thread's own time,
  // `at_barrier` the time of its last barrier, and `known` the latest known time of each lane of its warp.
  uint32_t now, at_barrier, known[warp_lanes];

  JZTREE_UNWATCHED int lane() const { return thread & (warp_lanes - 1); }
};

class Stacks {
 public:
  static constexpr size_t bytes = 256 << 10;

  // A new fiber.
  static Fiber* take();
  // The initial stack pointer of a fiber that calls `body` at the first switch to it.
  static void* ready(Fiber* fiber, void (*body)());

  // The fiber that runs the calling code; null outside of fibers.
  JZTREE_UNWATCHED static Fiber* current() {
    auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    return here - first_ < count * bytes ? reinterpret_cast<Fiber*>(here & ~(bytes - 1)) : nullptr;
  }

 private:
  static constexpr size_t count = size_t{1} << 18;

  static const uintptr_t first_;
};

}  // namespace emulator
