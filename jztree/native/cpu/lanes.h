// Vectors of a fixed number of lanes, by the vector extension that GCC and Clang share on all machines. The compiler
// maps them to the registers there are. (Loops over small arrays of the same length are unrolled into scalars instead.)
#pragma once

#include <cstdint>
#include <cstring>

namespace jztree {

// Vector loops work on whole blocks of this many elements; arrays are padded so that the last block may be read.
constexpr int64_t lanes = 16;

template <typename T>
struct LaneTypes {
  typedef T Vector __attribute__((vector_size(lanes * sizeof(T))));
};

template <typename T>
using Lanes = typename LaneTypes<T>::Vector;

template <typename T>
inline void load(const T* from, Lanes<T>& to) {
  std::memcpy(&to, from, sizeof(to));
}

template <typename T>
inline void store(const Lanes<T>& from, T* to) {
  std::memcpy(to, &from, sizeof(from));
}

// Whether any lane of a comparison's result is true.
template <typename Mask>
inline bool any_lane(const Mask& mask) {
  uint64_t words[sizeof(Mask) / sizeof(uint64_t)], all = 0;
  std::memcpy(words, &mask, sizeof(Mask));
  for (uint64_t word : words) all |= word;
  return all != 0;
}

}  // namespace jztree
