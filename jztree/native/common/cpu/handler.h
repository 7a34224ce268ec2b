// What every handler for the CPU needs: reading small arguments, and what both backends need.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/handler.h"
#include "memory.h"
#include "subnormals.h"

namespace jztree {

template <>
struct detail::Parameter<ffi::ThreadPool> : ContextParameter<ffi::ThreadPool> {};

namespace detail {

template <typename Parameter>
void expect_writes(const Parameter&) {}
template <typename Buffer>
void expect_writes(ffi::Result<Buffer>& result) {
  prefer_huge_pages(result->untyped_data(), result->size_bytes());
}

}  // namespace detail

// Results are fresh memory, and many are written in random order.
template <typename... Types>
auto prepared(ffi::Error (*function)(Types...)) {
  return [function](Types... arguments) {
    KeepSubnormals kept;
    (detail::expect_writes(arguments), ...);
    return function(arguments...);
  };
}

// Box lengths and linking lengths arrive as words whose float64 sum over the last axis is the number.
inline bool read_exact(const ffi::AnyBuffer& words, int64_t count, double* out) {
  auto dims = words.dimensions();
  if (dims.size() == 0 || words.element_count() % count != 0) return false;
  int64_t parts = dims[dims.size() - 1];
  if (static_cast<int64_t>(words.element_count()) != count * parts) return false;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = 0;
    for (int64_t j = 0; j < parts; ++j) {
      if (words.element_type() == ffi::F32) {
        out[i] += static_cast<double>(words.typed_data<float>()[i * parts + j]);
      } else if (words.element_type() == ffi::F64) {
        out[i] += words.typed_data<double>()[i * parts + j];
      } else {
        return false;
      }
    }
  }
  return true;
}

inline int64_t read_count(const ffi::Buffer<ffi::S32>& num, int64_t rows) {
  return std::min<int64_t>(rows, std::max<int64_t>(0, num.typed_data()[0]));
}

}  // namespace jztree
