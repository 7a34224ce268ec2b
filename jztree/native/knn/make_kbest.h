// Which list of the nearest is the fastest for k neighbours.
#pragma once

#include <cstdint>
#include <memory>

#include "counted_kbest.h"
#include "inserting_kbest.h"

namespace jztree {

template <typename T>
std::unique_ptr<KBest<T>> make_kbest(int64_t k, int64_t most);

template <>
inline std::unique_ptr<KBest<float>> make_kbest<float>(int64_t k, int64_t most) {
  if (k <= 8) return std::make_unique<VectorKBest<8>>(k);
  if (k <= 16) return std::make_unique<VectorKBest<16>>(k);
  if (k <= 24) return std::make_unique<VectorKBest<24>>(k);
  if (k <= 32) return std::make_unique<VectorKBest<32>>(k);
  if (k <= 40) return std::make_unique<VectorKBest<40>>(k);
  // Up to eight registers of 64 bytes; smaller ones are too many to insert into: from there on, counting is faster.
  if constexpr (register_bytes == 64) {
    if (k <= 48) return std::make_unique<VectorKBest<48>>(k);
    if (k <= 56) return std::make_unique<VectorKBest<56>>(k);
    if (k <= 64) return std::make_unique<VectorKBest<64>>(k);
  }
  return std::make_unique<CountedKBest<float>>(k, most);
}

template <>
inline std::unique_ptr<KBest<double>> make_kbest<double>(int64_t k, int64_t most) {
  if (k <= 16) return std::make_unique<SortedKBest>(k);
  return std::make_unique<CountedKBest<double>>(k, most);
}

}  // namespace jztree
