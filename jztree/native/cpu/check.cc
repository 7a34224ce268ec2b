// Kernels that raise at run time. The check hands a small value through, which everything after it needs, so that the
// compiler cannot drop it.

#include <string>

#include "handler.h"

namespace jztree {
namespace {

// Replaces {0}, {1}, ... by the values.
std::string filled(std::string sentence, const ffi::Buffer<ffi::S32>& values) {
  for (size_t i = 0; i < values.element_count(); ++i) {
    std::string mark = "{" + std::to_string(i) + "}", text = std::to_string(values.typed_data()[i]);
    for (size_t at = sentence.find(mark); at != std::string::npos; at = sentence.find(mark, at + text.size()))
      sentence.replace(at, mark.size(), text);
  }
  return sentence;
}

ffi::Error check(ffi::Buffer<ffi::S32> value, ffi::Buffer<ffi::S32> failed, ffi::Buffer<ffi::S32> numbers,
                 ffi::Result<ffi::Buffer<ffi::S32>> out, std::string_view sentence) {
  if (value.element_count() != out->element_count() || failed.element_count() != 1)
    return invalid("check was called with arrays that do not fit together.");
  if (failed.typed_data()[0] != 0) return invalid(filled(std::string(sentence), numbers));
  std::copy(value.typed_data(), value.typed_data() + value.element_count(), out->typed_data());
  return ffi::Error::Success();
}

// Stands in for every kernel on platforms that this installation has no kernels for.
ffi::Error missing(ffi::RemainingArgs, ffi::RemainingRets) {
  return ffi::Error(
      ffi::ErrorCode::kUnimplemented,
      "jztree: this installation has kernels for the CPU only, and the arrays are on another device; put "
      "them on the CPU with jax.device_put(part, jax.devices('cpu')[0]), or start with JAX_PLATFORMS=cpu.");
}

}  // namespace

JZTREE_HANDLER(jztree_missing, missing, ffi::Ffi::Bind().RemainingArgs().RemainingRets());

JZTREE_HANDLER(jztree_check, check,
               ffi::Ffi::Bind()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Ret<ffi::Buffer<ffi::S32>>()
                   .Attr<std::string_view>("sentence"));

}  // namespace jztree
