// What every handler needs: dispatch on dtype and dims, and errors as sentences.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "xla/ffi/api/ffi.h"

// Defines a handler that Python finds in the library by its name. What XLA is to pass to the function follows from its
// parameters; attributes, which are all that is neither a context nor a buffer, are named in their order. `prepared` is
// what the backend does before each call.
#define JZTREE_HANDLER(name, function, ...)                                                        \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* name(XLA_FFI_CallFrame* frame); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, jztree::prepared(function), jztree::bound(function, ##__VA_ARGS__))

// The same for a function without attributes that XLA may capture in a command buffer.
#define JZTREE_CAPTURED_HANDLER(name, function)                                                    \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* name(XLA_FFI_CallFrame* frame); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, jztree::prepared(function), jztree::bound(function),         \
                                {jztree::ffi::Traits::kCmdBufferCompatible})

namespace jztree {

namespace ffi = xla::ffi;

namespace detail {

// How a parameter of a handler is bound. By default it is an attribute.
template <typename T>
struct Parameter {
  static constexpr bool is_attribute = true;
};
struct NoAttribute {
  static constexpr bool is_attribute = false;
};
template <typename Context>
struct ContextParameter : NoAttribute {
  template <typename Binding>
  static auto bind(Binding&& binding) {
    return std::move(binding).template Ctx<Context>();
  }
};
template <typename Buffer>
struct ArgumentParameter : NoAttribute {
  template <typename Binding>
  static auto bind(Binding&& binding) {
    return std::move(binding).template Arg<Buffer>();
  }
};
template <>
struct Parameter<ffi::AnyBuffer> : ArgumentParameter<ffi::AnyBuffer> {};
template <ffi::DataType type, size_t rank>
struct Parameter<ffi::Buffer<type, rank>> : ArgumentParameter<ffi::Buffer<type, rank>> {};
template <typename Buffer>
struct Parameter<ffi::Result<Buffer>> : NoAttribute {
  template <typename Binding>
  static auto bind(Binding&& binding) {
    return std::move(binding).template Ret<Buffer>();
  }
};
template <>
struct Parameter<ffi::RemainingArgs> : NoAttribute {
  template <typename Binding>
  static auto bind(Binding&& binding) {
    return std::move(binding).RemainingArgs();
  }
};
template <>
struct Parameter<ffi::RemainingRets> : NoAttribute {
  template <typename Binding>
  static auto bind(Binding&& binding) {
    return std::move(binding).RemainingRets();
  }
};

// A binding can be neither copied nor moved: each step makes the next one out of it, the last is returned in place.
template <typename First, typename Binding>
auto bind_one(Binding&& binding, const char* attribute) {
  if constexpr (Parameter<First>::is_attribute) {
    return std::move(binding).template Attr<First>(attribute);
  } else {
    return Parameter<First>::bind(std::move(binding));
  }
}

template <typename First, typename... Rest, typename Binding>
auto bind_all(Binding&& binding, const char* const* attributes) {
  if constexpr (sizeof...(Rest) == 0) {
    return bind_one<First>(std::move(binding), *attributes);
  } else {
    return bind_all<Rest...>(bind_one<First>(std::move(binding), *attributes),
                             attributes + Parameter<First>::is_attribute);
  }
}

}  // namespace detail

template <typename... Types, typename... Names>
auto bound(ffi::Error (*)(Types...), Names... attributes) {
  static_assert((0 + ... + int{detail::Parameter<Types>::is_attribute}) == sizeof...(Names),
                "every attribute has a name");
  const char* const names[] = {attributes..., nullptr};
  return detail::bind_all<Types...>(ffi::Ffi::Bind(), names);
}

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
