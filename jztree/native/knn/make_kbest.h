// Selects the fastest list of nearest candidates for k neighbours.
#pragma once

#include <cstdint>
#include <memory>

#include "counted_kbest.h"
#include "inserting_kbest.h"
#include "rounded_kbest.h"

namespace jztree {

template <typename T>
std::unique_ptr<KBest<T>> make_kbest(int64_t k, int64_t max_batch);

template <>
inline std::unique_ptr<KBest<float>> make_kbest<float>(int64_t k, int64_t max_batch) {
  if (k <= 8) return std::make_unique<VectorKBest<8>>(k);
  if (k <= 16) return std::make_unique<VectorKBest<16>>(k);
  if (k <= 24) return std::make_unique<VectorKBest<24>>(k);
  if (k <= 32) return std::make_unique<VectorKBest<32>>(k);
  if (k <= 40) return std::make_unique<VectorKBest<40>>(k);
  // Up to eight registers of 64 bytes. Insertion into more, smaller registers is slower than counting.
  if constexpr (register_bytes == 64) {
    if (k <= 48) return std::make_unique<VectorKBest<48>>(k);
    if (k <= 56) return std::make_unique<VectorKBest<56>>(k);
    if (k <= 64) return std::make_unique<VectorKBest<64>>(k);
  }
  return std::make_unique<CountedKBest<float>>(k, max_batch);
}

template <>
inline std::unique_ptr<KBest<double>> make_kbest<double>(int64_t k, int64_t max_batch) {
  if (k <= 16) return std::make_unique<SortedKBest>(k);
  return std::make_unique<CountedKBest<double>>(k, max_batch);
}

// Selects a faster list that cannot decide all ties; null if no such list is faster for k.
template <typename T>
std::unique_ptr<KBest<T>> make_rounded_kbest(int64_t k);

// The limits are measured for each register width: whole candidates are faster for fewer neighbours, and counting for
// more. A list has at least two entries after the k-th, so that it can decide ties of two or three.
template <>
inline std::unique_ptr<KBest<float>> make_rounded_kbest<float>(int64_t k) {
  if (k <= (register_bytes == 64 ? 32 : 24)) return nullptr;
  if (k <= 30) return std::make_unique<RoundedKBest<float, 32>>(k);
  if (k <= 46) return std::make_unique<RoundedKBest<float, 48>>(k);
  if (k <= 62) return std::make_unique<RoundedKBest<float, 64>>(k);
  if constexpr (register_bytes >= 32) {
    if (k <= 78) return std::make_unique<RoundedKBest<float, 80>>(k);
  }
  if constexpr (register_bytes == 64) {
    if (k <= 94) return std::make_unique<RoundedKBest<float, 96>>(k);
    if (k <= 110) return std::make_unique<RoundedKBest<float, 112>>(k);
    if (k <= 126) return std::make_unique<RoundedKBest<float, 128>>(k);
  }
  return nullptr;
}

template <>
inline std::unique_ptr<KBest<double>> make_rounded_kbest<double>(int64_t k) {
  constexpr int room = register_bytes == 64 ? 16 : 12;  // a multiple of the register's width
  if (k <= 4) return nullptr;
  if (k <= 6) return std::make_unique<RoundedKBest<double, 8>>(k);
  if (k <= room - 2) return std::make_unique<RoundedKBest<double, room>>(k);
  if (k <= 14) return std::make_unique<RoundedKBest<double, 16>>(k);
  if (k <= 22) return std::make_unique<RoundedKBest<double, 24>>(k);
  if constexpr (register_bytes >= 32) {
    if (k <= 30) return std::make_unique<RoundedKBest<double, 32>>(k);
    if (k <= 38) return std::make_unique<RoundedKBest<double, 40>>(k);
    if (k <= 46) return std::make_unique<RoundedKBest<double, 48>>(k);
  }
  if constexpr (register_bytes == 64) {
    if (k <= 62) return std::make_unique<RoundedKBest<double, 64>>(k);
  }
  return nullptr;
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
