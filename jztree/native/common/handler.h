// What every handler needs: dispatch on dtype and dims, and errors as sentences.
#pragma once

#include <cstdint>
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
