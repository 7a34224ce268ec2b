// What every handler needs: reading small arguments, dispatch on dtype and dims, and errors as sentences.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <type_traits>

#include "xla/ffi/api/ffi.h"

// Defines a handler that Python finds in the library by its name.
#define JZTREE_HANDLER(name, ...)                                                                  \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* name(XLA_FFI_CallFrame* frame); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, __VA_ARGS__)

namespace jztree {

namespace ffi = xla::ffi;

constexpr int max_dims = 8;

inline ffi::Error invalid(const std::string& sentence) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "jztree: " + sentence);
}

inline std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
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

// What is wrong with box lengths whose values were not known when the function was traced; empty if nothing.
inline std::string check_box(const double* period, int dims) {
  for (int d = 0; d < dims; ++d)
    if (!(period[d] >= 0) || std::isinf(period[d]))
      return "boxsize is " + number(period[d]) + " in dimension " + std::to_string(d) +
             "; lengths must be finite and positive, or 0 where open.";
  return {};
}

inline int64_t read_count(const ffi::Buffer<ffi::S32>& num, int64_t rows) {
  return std::min<int64_t>(rows, std::max<int64_t>(0, num.typed_data()[0]));
}

template <int D>
using Dims = std::integral_constant<int, D>;

namespace detail {

template <int D, int MaxD, typename T, typename Body>
ffi::Error dispatch_dims(int64_t dims, const Body& body) {
  if constexpr (D > MaxD) {
    return invalid("positions have " + std::to_string(dims) + " dimensions; 1 to " + std::to_string(MaxD) +
                   " are possible here.");
  } else {
    if (dims == D) return body(T{}, Dims<D>{});
    return dispatch_dims<D + 1, MaxD, T>(dims, body);
  }
}

}  // namespace detail

// Runs a handler's work; exceptions must not reach XLA.
template <typename Body>
ffi::Error guarded(const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "jztree: out of memory for work arrays on the host.");
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kInternal, std::string("jztree: ") + error.what());
  }
}

// Calls body(T{}, Dims<D>{}) for the dtype and the number of columns of pos. MaxD bounds what is compiled.
template <int MaxD, typename Body>
ffi::Error dispatch(const ffi::AnyBuffer& pos, const Body& body) {
  auto shape = pos.dimensions();
  if (shape.size() != 2) return invalid("positions must have shape (n, d).");
  return guarded([&] {
    if (pos.element_type() == ffi::F32) return detail::dispatch_dims<1, MaxD, float>(shape[1], body);
    if (pos.element_type() == ffi::F64) return detail::dispatch_dims<1, MaxD, double>(shape[1], body);
    return invalid("positions must be float32 or float64.");
  });
}

}  // namespace jztree
