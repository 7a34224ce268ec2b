// Small arguments that lie on the GPU and are read there.
#pragma once

#include <cstdint>

#include "queue.cuh"

namespace jztree {

// Box lengths and linking lengths arrive as words whose float64 sum over the last axis is the number.
struct Lengths {
  const void* words = nullptr;
  int parts = 0;
  bool wide = false;

  __device__ double operator[](int64_t i) const {
    double sum = 0;
    for (int64_t j = i * parts; j < (i + 1) * parts; ++j)
      sum += wide ? static_cast<const double*>(words)[j] : static_cast<double>(static_cast<const float*>(words)[j]);
    return sum;
  }
};

inline bool read_lengths(const ffi::AnyBuffer& words, int64_t count, Lengths* out) {
  auto dims = words.dimensions();
  if (dims.size() == 0 || (words.element_type() != ffi::F32 && words.element_type() != ffi::F64)) return false;
  int64_t parts = dims[dims.size() - 1];
  if (static_cast<int64_t>(words.element_count()) != count * parts) return false;
  *out = Lengths{words.untyped_data(), static_cast<int>(parts), words.element_type() == ffi::F64};
  return true;
}

// How many leading rows of an array hold particles.
struct Count {
  const int32_t* number = nullptr;
  int64_t rows = 0;

  __device__ int64_t operator()() const {
    int64_t given = number[0];
    return given < 0 ? 0 : given > rows ? rows : given;
  }
};

inline Count read_count(const ffi::Buffer<ffi::S32>& num, int64_t rows) { return Count{num.typed_data(), rows}; }

// A list of rows, or null for all rows in their order.
inline const int32_t* listed(const ffi::Buffer<ffi::S32>& rows) {
  return rows.element_count() == 0 ? nullptr : rows.typed_data();
}

}  // namespace jztree
