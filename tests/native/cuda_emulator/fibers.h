// The threads of one CUDA block as fibers of one thread of the host.
//
// A fiber runs until it comes to a barrier, of its block or of lanes of its warp; then the next one runs. Blocks run
// one after the other. With JZTREE_EMULATOR_SEED set to a number above 0, fibers run in an order drawn from it, and
// atomic operations may hand over to other fibers, so that another number tries another interleaving.
//
// What no GPU would report is an error here, and ends the program with a sentence: lanes that meet at different
// operations, lanes named in a mask that have left the kernel or never come, barriers that part of a block never
// reaches.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#if !defined(__x86_64__)
#error "the emulator switches between fibers in x86-64 assembly"
#endif

namespace emulator {

extern "C" void jztree_switch_fiber(void** save_stack, void* load_stack);
asm(R"(
.text
.local jztree_switch_fiber
.type jztree_switch_fiber, @function
jztree_switch_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size jztree_switch_fiber, .-jztree_switch_fiber
)");

[[noreturn]] inline void fail(const char* sentence) {
  std::fprintf(stderr, "CUDA emulator: %s\n", sentence);
  std::abort();
}

enum class Wait : uint8_t { ready, block, warp, done };
enum class Operation : uint8_t { sync, shuffle, ballot };

struct Fiber {
  void* stack_pointer;
  Wait wait;
  // What a lane brings to its warp, and takes away.
  Operation operation;
  uint32_t mask;
  int source;  // of a shuffle; negative: keep one's own
  bool predicate;
  alignas(16) unsigned char value[16];
  alignas(16) unsigned char result[16];
  uint32_t ballot;
};

class Block {
 public:
  static Block& current() {
    static thread_local Block block;
    return block;
  }

  // Runs body() once for each thread of a block.
  void run(int threads, const std::function<void(int)>& body) {
    if (threads < 1 || threads > 1024) fail("a block has 1 to 1024 threads.");
    prepare(threads);
    body_ = &body;
    while (live_ > 0) {
      bool moved = false;
      for (int i : order()) {
        if (fibers_[static_cast<size_t>(i)].wait != Wait::ready) continue;
        at_ = i;
        moved = true;
        jztree_switch_fiber(&main_, fibers_[static_cast<size_t>(i)].stack_pointer);
      }
      moved |= release_block();
      if (!moved && live_ > 0) fail("threads wait for others that do not come to the same barrier.");
    }
  }

  int thread() const { return at_; }

  void sync_block() { hand_over(Wait::block); }

  // The last lane of the mask to arrive serves all of them.
  Fiber& meet(uint32_t mask, Operation operation) {
    Fiber& me = fibers_[static_cast<size_t>(at_)];
    if (!(mask >> (at_ & 31) & 1)) fail("a lane takes part in an operation whose mask does not name it.");
    me.mask = mask;
    me.operation = operation;
    me.wait = Wait::warp;
    if (all_here(me)) {
      serve(me);
    } else {
      switch_out();
    }
    return me;
  }
  Fiber& me() { return fibers_[static_cast<size_t>(at_)]; }

  // Before what other threads may see at once.
  void may_interleave() {
    if (seed() > 0 && at_ >= 0 && random_() % 8 == 0) hand_over(Wait::ready);
  }

 private:
  static constexpr size_t stack_bytes = 256 << 10;

  static int seed() {
    static const int value = [] {
      const char* text = std::getenv("JZTREE_EMULATOR_SEED");
      return text ? std::atoi(text) : 0;
    }();
    return value;
  }

  const std::vector<int>& order() {
    if (seed() > 0)
      for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random_() % i]);
    return order_;
  }

  void prepare(int threads) {
    while (stacks_.size() < static_cast<size_t>(threads)) {
      void* memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) fail("there is no memory for the stack of a thread.");
      stacks_.push_back(static_cast<unsigned char*>(memory));
    }
    if (random_draws_ == 0) random_.seed(static_cast<unsigned>(seed()));
    ++random_draws_;
    fibers_.resize(static_cast<size_t>(threads));
    order_.resize(static_cast<size_t>(threads));
    live_ = threads;
    for (int i = 0; i < threads; ++i) {
      order_[static_cast<size_t>(i)] = i;
      Fiber& fiber = fibers_[static_cast<size_t>(i)];
      fiber.wait = Wait::ready;
      auto** top = reinterpret_cast<void**>(stacks_[static_cast<size_t>(i)] + stack_bytes);
      *--top = nullptr;  // keeps the stack aligned as after a call
      *--top = reinterpret_cast<void*>(&Block::start);
      for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
      fiber.stack_pointer = top;
    }
  }

  static void start() {
    Block& block = current();
    (*block.body_)(block.at_);
    block.me().wait = Wait::done;
    --block.live_;
    block.switch_out();
    fail("a thread that had ended ran again.");
  }

  void hand_over(Wait wait) {
    me().wait = wait;
    switch_out();
  }

  void switch_out() { jztree_switch_fiber(&fibers_[static_cast<size_t>(at_)].stack_pointer, main_); }

  bool release_block() {
    bool any = false;
    for (Fiber& fiber : fibers_)
      if (fiber.wait == Wait::ready || fiber.wait == Wait::warp) return false;
    for (Fiber& fiber : fibers_)
      if (fiber.wait == Wait::block) fiber.wait = Wait::ready, any = true;
    return any;
  }

  Fiber* lane(int lane) {
    size_t i = static_cast<size_t>((at_ & ~31) + lane);
    return i < fibers_.size() ? &fibers_[i] : nullptr;
  }

  bool all_here(const Fiber& last) {
    for (int i = 0; i < 32; ++i) {
      if (!(last.mask >> i & 1)) continue;
      Fiber* other = lane(i);
      if (!other || other->wait == Wait::done) fail("a mask names a lane that does not exist or has left the kernel.");
      if (other->wait != Wait::warp) return false;
      if (other->mask != last.mask || other->operation != last.operation)
        fail("lanes of one mask came to different operations.");
    }
    return true;
  }

  void serve(const Fiber& last) {
    uint32_t ballot = 0;
    for (int i = 0; i < 32; ++i)
      if ((last.mask >> i & 1) && lane(i)->predicate) ballot |= 1u << i;
    for (int i = 0; i < 32; ++i) {
      if (!(last.mask >> i & 1)) continue;
      Fiber& fiber = *lane(i);
      fiber.ballot = ballot;
      if (fiber.operation == Operation::shuffle) {
        int source = fiber.source < 0 ? i : fiber.source;
        if (!(last.mask >> source & 1)) fail("a lane asks for the value of a lane that the mask does not name.");
        std::memcpy(fiber.result, lane(source)->value, sizeof(fiber.result));
      }
      fiber.wait = Wait::ready;
    }
  }

  std::vector<unsigned char*> stacks_;
  std::vector<Fiber> fibers_;
  std::vector<int> order_;
  std::mt19937 random_;
  int64_t random_draws_ = 0;
  const std::function<void(int)>* body_ = nullptr;
  void* main_ = nullptr;
  int at_ = -1, live_ = 0;
};

}  // namespace emulator
