// Selects the fastest list of nearest candidates for k neighbours.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "counted_kbest.h"
#include "inserting_kbest.h"
#include "rounded_kbest.h"

namespace jztree {

// The number for registers of 16, 32 or 64 bytes.
constexpr int by_width(int for_16, int for_32, int for_64) {
  return register_bytes == 16 ? for_16 : register_bytes == 32 ? for_32 : for_64;
}

// The smallest of the lists with Room, Room + Step, ..., Largest entries that is large enough; null if none is.
template <typename T, template <int> class List, int Room, int Step, int Largest>
std::unique_ptr<KBest<T>> smallest_kbest(int64_t k) {
  if constexpr (Room <= Largest) {
    if (k <= List<Room>::max_k) return std::make_unique<List<Room>>(k);
    return smallest_kbest<T, List, Room + Step, Step, Largest>(k);
  }
  return nullptr;
}

template <int Room>
using RoundedFloats = RoundedKBest<float, Room>;
template <int Room>
using RoundedDoubles = RoundedKBest<double, Room>;

// The limits of both functions are measured for each register width: whole candidates are faster for fewer neighbours,
// and counting for more.
template <typename T>
std::unique_ptr<KBest<T>> make_kbest(int64_t k, int64_t max_batch) {
  if constexpr (std::is_same_v<T, float>) {
    constexpr int step = by_width(4, 4, 8);
    if (auto list = smallest_kbest<float, VectorKBest, step, step, by_width(40, 40, 64)>(k)) return list;
  } else if (k <= 16) {
    return std::make_unique<SortedKBest>(k);
  }
  return std::make_unique<CountedKBest<T>>(k, max_batch);
}

// Selects a faster list that cannot decide all ties; null if no such list is faster for k.
template <typename T>
std::unique_ptr<KBest<T>> make_rounded_kbest(int64_t k) {
  if constexpr (std::is_same_v<T, float>) {
    if (k <= by_width(24, 32, 64)) return nullptr;
    return smallest_kbest<float, RoundedFloats, 32, by_width(16, 8, 16), by_width(64, 128, 192)>(k);
  } else {
    return k <= 4 ? nullptr : smallest_kbest<double, RoundedDoubles, 8, by_width(4, 4, 8), by_width(24, 72, 144)>(k);
  }
}

// The lists of one walk.
template <typename T>
class Lists {
 public:
  Lists(int64_t k, int64_t max_batch) : exact_(make_kbest<T>(k, max_batch)), rounded_(make_rounded_kbest<T>(k)) {}

  // The list for the next group: an exact one if a group was recently left undecided.
  KBest<T>& next() {
    bool exact = !rounded_ || exact_groups_ > 0;
    exact_groups_ -= exact_groups_ > 0;
    return exact ? *exact_ : *rounded_;
  }

  // The exact list, for a group that the rounded list has left undecided. The next groups are likely to have ties also,
  // so they get exact lists.
  KBest<T>& exact() {
    exact_groups_ = 31;
    return *exact_;
  }

 private:
  std::unique_ptr<KBest<T>> exact_, rounded_;
  int exact_groups_ = 0;  // remaining groups that get exact lists
};

}  // namespace jztree
