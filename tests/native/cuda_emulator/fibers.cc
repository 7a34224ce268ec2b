#include "fibers.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#if !defined(__x86_64__)
#error "the emulator switches between fibers in x86-64 assembly"
#endif

namespace emulator {

asm(R"(
.text
.globl jztree_switch_fiber
.hidden jztree_switch_fiber
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

void fail(const char* sentence) {
  std::fprintf(stderr, "CUDA emulator: %s\n", sentence);
  std::abort();
}

bool is_left_out(const char* handler, const char* function) {
  static const char* const named = std::getenv("JZTREE_EMULATOR_WITHOUT");
  if (!named) return false;
  // For templates, the compiler appends the arguments.
  std::string name(function, std::strcspn(function, "<"));
  return handler + (":" + name) == named;
}

long long setting(const char* name, long long otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoll(text) : otherwise;
}

int seed() {
  static const int value = static_cast<int>(setting("JZTREE_EMULATOR_SEED", 0));
  return value;
}

unsigned char* reserve(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail("the system refuses to reserve address space.");
  madvise(memory, bytes, MADV_DONTDUMP);
  return static_cast<unsigned char*>(memory);
}

const uintptr_t Stacks::first_ = (reinterpret_cast<uintptr_t>(reserve((count + 1) * bytes)) + bytes - 1) & ~(bytes - 1);

Fiber* Stacks::take() {
  static std::atomic<size_t> taken{0};
  size_t number = taken++;
  if (number >= count) fail("too many threads run at once.");
  return new (reinterpret_cast<void*>(first_ + number * bytes)) Fiber{};
}

void* Stacks::ready(Fiber* fiber, void (*body)()) {
  auto** top = reinterpret_cast<void**>(reinterpret_cast<unsigned char*>(fiber) + bytes);
  *--top = nullptr;  // keeps the stack aligned as after a call
  *--top = reinterpret_cast<void*>(body);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  return top;
}

}  // namespace emulator
