// The kernel that raises at run time. It hands a small value through, which everything after it needs, so that the
// compiler cannot drop it.

#include <string>

#include "common/sentence.h"
#include "common/cpu/handler.h"

namespace jztree {
namespace {

ffi::Error check(ffi::Buffer<ffi::S32> value, ffi::Buffer<ffi::S32> failed, ffi::Buffer<ffi::S32> numbers,
                 ffi::Result<ffi::Buffer<ffi::S32>> out, std::string_view sentence) {
  if (value.element_count() != out->element_count() || failed.element_count() != 1)
    return invalid("check was called with arrays that do not fit together.");
  if (int32_t which = failed.typed_data()[0]; which != 0)
    return invalid(filled(chosen(sentence, which), numbers.typed_data(), numbers.element_count()));
  std::copy(value.typed_data(), value.typed_data() + value.element_count(), out->typed_data());
  return ffi::Error::Success();
}

}  // namespace

JZTREE_HANDLER(jztree_check, check, "sentence");

}  // namespace jztree
