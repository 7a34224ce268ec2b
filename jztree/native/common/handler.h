// The handlers that XLA calls, and their inputs. This needs XLA's large header, so kernels do not include it.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "xla/ffi/api/ffi.h"

namespace jztree {

namespace ffi = xla::ffi;

// Run a handler's work, and convert exceptions to errors, because exceptions must not reach XLA.
template <typename Body>
ffi::Error guarded(const Body& body) {
  try {
    body();
    return ffi::Error::Success();
  } catch (const Refusal& refusal) {
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, std::string("jztree: ") + refusal.what());
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "jztree: out of memory for work arrays on the host.");
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kInternal, std::string("jztree: ") + error.what());
  }
}

// The attributes of a call.
class GivenAttributes : public Attributes {
 public:
  explicit GivenAttributes(const ffi::Dictionary& values) : values_(values) {}

  int64_t integer(const char* name) const override { return given<int64_t>(name); }
  bool flag(const char* name) const override { return given<bool>(name); }
  Integers integers(const char* name) const override {
    auto span = given<ffi::Span<const int64_t>>(name);
    return {span.begin(), span.size()};
  }
  std::string_view text(const char* name) const override { return given<std::string_view>(name); }

 private:
  template <typename T>
  T given(const char* name) const {
    auto value = values_.get<T>(name);
    if (!value.has_value()) refuse(name);
    return value.value();
  }

  const ffi::Dictionary& values_;
};

// The arguments that XLA passes to every kernel.
inline Arguments read_call(const char* kernel, const ffi::RemainingArgs& given, const ffi::RemainingRets& wanted,
                           const Attributes& attributes) {
  auto as_buffer = [](const ffi::AnyBuffer& buffer) {
    auto dims = buffer.dimensions();
    return Buffer{static_cast<XLA_FFI_DataType>(buffer.element_type()), dims.begin(), static_cast<int>(dims.size()),
                  buffer.untyped_data()};
  };
  std::vector<Buffer> arguments, results;
  for (size_t i = 0; i < given.size(); ++i) arguments.push_back(as_buffer(given.get<ffi::AnyBuffer>(i).value()));
  for (size_t i = 0; i < wanted.size(); ++i) results.push_back(as_buffer(*wanted.get<ffi::AnyBuffer>(i).value()));
  return Arguments(kernel, std::move(arguments), std::move(results), attributes);
}

}  // namespace jztree

// A handler that is not a kernel, as the symbol `jztree_<name>`. The arguments after the name are passed to
// XLA_FFI_DEFINE_HANDLER_SYMBOL.
#define JZTREE_DEFINE_SYMBOL(name, ...)                                                                     \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* jztree_##name(XLA_FFI_CallFrame* frame); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(jztree_##name, __VA_ARGS__)
