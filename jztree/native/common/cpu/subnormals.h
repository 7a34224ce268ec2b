// XLA's threads treat numbers below the smallest normal one as 0, in inputs and results. Such coordinates are positions
// like any other, so kernels disable this mode.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace jztree {

// During its lifetime, subnormal numbers keep their values in this thread.
class KeepSubnormals {
 public:
  KeepSubnormals() : before_(read()) {
    if (before_ & flushing) write(before_ & ~flushing);
  }
  ~KeepSubnormals() {
    if (before_ & flushing) write(before_);
  }
  KeepSubnormals(const KeepSubnormals&) = delete;
  KeepSubnormals& operator=(const KeepSubnormals&) = delete;

 private:
#if defined(__SSE2__)
  using Word = unsigned;
  static constexpr Word flushing = 0x8040;  // flush to zero, and denormals are zero
  static Word read() { return _mm_getcsr(); }
  static void write(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word flushing = Word{1} << 24;  // FZ
  static Word read() {
    Word word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void write(Word word) { asm volatile("msr fpcr, %0" : : "r"(word)); }
#else
  using Word = unsigned;
  static constexpr Word flushing = 0;
  static Word read() { return 0; }
  static void write(Word) {}
#endif

  const Word before_;
};

}  // namespace jztree
