// The instructions of nvcc's intermediate code (PTX), for kernels that tests/ptx.py translates. As NVIDIA's "Parallel
// Thread Execution ISA" defines them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "replaced.h"

using emulator::Machine;
using emulator::Replacement;

namespace {

template <typename To, typename From>
To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "bits are copied");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// The value of an operand: the bits of a register, or the low ones if the type is narrower.
template <typename T, typename Register>
T in(Register x) {
  if constexpr (std::is_same<T, bool>::value) {
    return x != 0;
  } else if constexpr (sizeof(T) == sizeof(Register)) {
    return same_bits<T>(x);
  } else {
    static_assert(std::is_integral<T>::value, "only integers are cut or extended");
    return static_cast<T>(x);
  }
}

// Write a register. A narrower number is extended by its own sign.
template <typename Register, typename T>
void out(Register& target, T value) {
  if constexpr (sizeof(T) == sizeof(Register)) {
    target = same_bits<Register>(value);
  } else {
    static_assert(std::is_integral<T>::value, "only integers are extended");
    target = static_cast<Register>(value);
  }
}

// Memory. Addresses in shared memory count from its begin; all others are those of the host.

inline uint64_t address(const unsigned char* at) { return reinterpret_cast<uintptr_t>(at); }
inline uint64_t address(uint64_t in_space) { return in_space; }
inline unsigned char* at(uint64_t place) { return reinterpret_cast<unsigned char*>(place); }
inline unsigned char* in_shared(const Machine& machine, uint64_t place) { return machine.shared_memory() + place; }
// The host's address of a place in shared memory.
inline uint64_t shared_address(const Machine& machine, uint64_t place) { return address(in_shared(machine, place)); }

template <typename T>
T load(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
template <typename T>
void store(unsigned char* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}
template <typename T>
T atomic_add(const Machine& machine, unsigned char* place, T value) {
  machine.before_atomic();
  const T old = load<T>(place);
  store<T>(place, static_cast<T>(old + value));
  return old;
}
template <typename T>
T atomic_or(const Machine& machine, unsigned char* place, T value) {
  machine.before_atomic();
  const T old = load<T>(place);
  store<T>(place, static_cast<T>(old | value));
  return old;
}

// Arithmetic. Integers wrap around.

template <typename T, typename Work>
T wrapping(T a, T b, const Work& work) {
  if constexpr (std::is_integral<T>::value) {
    using Bits = std::make_unsigned_t<T>;
    return static_cast<T>(work(static_cast<Bits>(a), static_cast<Bits>(b)));
  } else {
    return work(a, b);
  }
}
template <typename T>
T add_(T a, T b) {
  return wrapping(a, b, [](auto x, auto y) { return x + y; });
}
template <typename T>
T sub_(T a, T b) {
  return wrapping(a, b, [](auto x, auto y) { return x - y; });
}
template <typename T>
T mul_(T a, T b) {
  return wrapping(a, b, [](auto x, auto y) { return x * y; });
}
template <typename T>
T mad_(T a, T b, T c) {
  return add_(mul_(a, b), c);
}
template <typename T>
struct Twice;
template <>
struct Twice<uint16_t> {
  using type = uint32_t;
};
template <>
struct Twice<int16_t> {
  using type = int32_t;
};
template <>
struct Twice<uint32_t> {
  using type = uint64_t;
};
template <>
struct Twice<int32_t> {
  using type = int64_t;
};
template <>
struct Twice<uint64_t> {
  using type = unsigned __int128;
};
template <>
struct Twice<int64_t> {
  using type = __int128;
};
template <typename T>
typename Twice<T>::type mul_wide(T a, T b) {
  return static_cast<typename Twice<T>::type>(a) * static_cast<typename Twice<T>::type>(b);
}
template <typename T>
T mul_hi(T a, T b) {
  return static_cast<T>(mul_wide(a, b) >> (8 * sizeof(T)));
}
template <typename T>
typename Twice<T>::type mad_wide(T a, T b, typename Twice<T>::type c) {
  return add_(mul_wide(a, b), c);
}
template <typename T>
T div_(T a, T b) {
  return a / b;
}
template <typename T>
T rem_(T a, T b) {
  return a % b;
}
// NaN gives the other number, and -0 is less than 0.
template <typename T>
T min_(T a, T b) {
  if constexpr (std::is_floating_point<T>::value)
    if (a != a || b != b || a == b) return a != a ? b : b != b ? a : std::signbit(a) ? a : b;
  return b < a ? b : a;
}
template <typename T>
T max_(T a, T b) {
  if constexpr (std::is_floating_point<T>::value)
    if (a != a || b != b || a == b) return a != a ? b : b != b ? a : std::signbit(a) ? b : a;
  return a < b ? b : a;
}
template <typename T>
T abs_(T x) {
  if constexpr (std::is_floating_point<T>::value) return std::fabs(x);
  return x < 0 ? sub_(T{0}, x) : x;
}
template <typename T>
T neg_(T x) {
  if constexpr (std::is_floating_point<T>::value) return -x;
  return sub_(T{0}, x);
}
template <typename T>
T fma_(T a, T b, T c) {
  return std::fma(a, b, c);
}
template <typename T>
T rcp_(T x) {
  return 1 / x;
}
template <typename T>
T sqrt_(T x) {
  return std::sqrt(x);
}
// The sign of the first number and the magnitude of the second.
template <typename T>
T copysign_(T sign, T x) {
  return std::copysign(x, sign);
}

// Bits.

template <typename T>
T not_(T x) {
  if constexpr (std::is_same<T, bool>::value) {
    return !x;
  } else {
    return static_cast<T>(~x);
  }
}
template <typename T>
T and_(T a, T b) {
  return a & b;
}
template <typename T>
T or_(T a, T b) {
  return a | b;
}
template <typename T>
T xor_(T a, T b) {
  return a ^ b;
}
template <typename T>
T shl_(T x, uint32_t by) {
  return by < 8 * sizeof(T) ? static_cast<T>(static_cast<std::make_unsigned_t<T>>(x) << by) : T{0};
}
template <typename T>
T shr_(T x, uint32_t by) {
  return by < 8 * sizeof(T) ? static_cast<T>(x >> by) : static_cast<T>(x < 0 ? -1 : 0);
}
template <typename T>
T low_bits(uint32_t count) {
  return count < 8 * sizeof(T) ? static_cast<T>((T{1} << count) - 1) : static_cast<T>(~T{0});
}
template <typename T>
T bfi(T from, T into, uint32_t place, uint32_t count) {
  const T mask = shl_(low_bits<T>(count & 255), place & 255);
  return static_cast<T>((into & ~mask) | (shl_(from, place & 255) & mask));
}
inline uint32_t clz(uint32_t x) { return x == 0 ? 32 : static_cast<uint32_t>(__builtin_clz(x)); }
inline uint32_t clz(uint64_t x) { return x == 0 ? 64 : static_cast<uint32_t>(__builtin_clzll(x)); }
inline uint32_t popc(uint32_t x) { return static_cast<uint32_t>(__builtin_popcount(x)); }
inline uint32_t popc(uint64_t x) { return static_cast<uint32_t>(__builtin_popcountll(x)); }
inline uint32_t bfind(uint32_t x) { return 31 - clz(x); }
// The shift that moves the highest set bit to the highest place.
inline uint32_t bfind_shiftamt(uint32_t x) { return x == 0 ? ~0u : clz(x); }
template <typename T>
T brev_(T x) {
  T reversed = 0;
  for (size_t i = 0; i < 8 * sizeof(T); ++i) reversed |= static_cast<T>((x >> i & 1) << (8 * sizeof(T) - 1 - i));
  return reversed;
}

// Comparisons; those with a final u are also true if a number is NaN.

template <typename T>
bool eq_(T a, T b) {
  return a == b;
}
template <typename T>
bool ne_(T a, T b) {
  return a < b || b < a;
}
template <typename T>
bool lt_(T a, T b) {
  return a < b;
}
template <typename T>
bool le_(T a, T b) {
  return a <= b;
}
template <typename T>
bool gt_(T a, T b) {
  return a > b;
}
template <typename T>
bool ge_(T a, T b) {
  return a >= b;
}
template <typename T>
bool equ_(T a, T b) {
  return !ne_(a, b);
}
template <typename T>
bool neu_(T a, T b) {
  return !(a == b);
}
template <typename T>
bool ltu_(T a, T b) {
  return !(a >= b);
}
template <typename T>
bool leu_(T a, T b) {
  return !(a > b);
}
template <typename T>
bool gtu_(T a, T b) {
  return !(a <= b);
}
template <typename T>
bool geu_(T a, T b) {
  return !(a < b);
}

// Conversions.

namespace rounding {
enum Rounding { none, rni, rzi, rmi, rpi };
}

// A float converted to an integer has the nearest possible value.
template <typename To, typename From>
To convert(From x, rounding::Rounding how) {
  if constexpr (std::is_floating_point<From>::value) {
    x = how == rounding::rni   ? std::nearbyint(x)
        : how == rounding::rzi ? std::trunc(x)
        : how == rounding::rmi ? std::floor(x)
        : how == rounding::rpi ? std::ceil(x)
                               : x;
    if constexpr (std::is_integral<To>::value) {
      using Limits = std::numeric_limits<To>;
      if (!(x > static_cast<From>(Limits::min()))) return x != x ? To{0} : Limits::min();
      if (x >= std::ldexp(From{1}, Limits::digits)) return Limits::max();
    }
  }
  return static_cast<To>(x);
}

// Operations of a warp.

inline uint32_t lane(const Machine& machine) { return machine.thread() & 31; }

// limits: the last lane of a part of the warp, and from bit 8 on the bits of lanes that are the same in a part.
inline uint32_t shuffled(const Machine& machine, uint32_t value, int64_t source, bool inside, uint32_t mask,
                         bool* is_inside) {
  *is_inside = inside;
  return machine.shuffle(mask, value, inside ? static_cast<int32_t>(source) : -1);
}
inline int64_t last_lane(const Machine& machine, uint32_t limits) {
  const uint32_t same = limits >> 8 & 31;
  return (lane(machine) & same) | (limits & 31 & ~same);
}
inline uint32_t shuffle_up(const Machine& machine, uint32_t value, uint32_t by, uint32_t limits, uint32_t mask,
                           bool* inside) {
  const int64_t source = int64_t{lane(machine)} - (by & 31);
  return shuffled(machine, value, source, source >= last_lane(machine, limits), mask, inside);
}
inline uint32_t shuffle_down(const Machine& machine, uint32_t value, uint32_t by, uint32_t limits, uint32_t mask,
                             bool* inside) {
  const int64_t source = int64_t{lane(machine)} + (by & 31);
  return shuffled(machine, value, source, source <= last_lane(machine, limits), mask, inside);
}
inline uint32_t shuffle_bfly(const Machine& machine, uint32_t value, uint32_t flip, uint32_t limits, uint32_t mask,
                             bool* inside) {
  const int64_t source = lane(machine) ^ (flip & 31);
  return shuffled(machine, value, source, source <= last_lane(machine, limits), mask, inside);
}
inline uint32_t shuffle_idx(const Machine& machine, uint32_t value, uint32_t from, uint32_t limits, uint32_t mask,
                            bool* inside) {
  const uint32_t same = limits >> 8 & 31;
  const int64_t source = (lane(machine) & same) | (from & 31 & ~same);
  return shuffled(machine, value, source, source <= last_lane(machine, limits), mask, inside);
}
inline uint32_t vote_ballot(const Machine& machine, bool predicate, uint32_t mask) {
  return machine.vote(mask, predicate);
}
inline bool vote_any(const Machine& machine, bool predicate, uint32_t mask) {
  return machine.vote(mask, predicate) != 0;
}
inline bool vote_all(const Machine& machine, bool predicate, uint32_t mask) {
  return machine.vote(mask, predicate) == mask;
}
// All lanes take part.
inline uint32_t redux_min(const Machine& machine, uint32_t value, uint32_t mask) {
  for (uint32_t flip = 16; flip > 0; flip /= 2)
    value = std::min(value, machine.shuffle(mask, value, static_cast<int32_t>(lane(machine) ^ flip)));
  return value;
}

}  // namespace
