// The kernel that raises at run time. It hands a small value through, which everything after it needs, so that the
// compiler cannot drop it.

#include <string>

#include "common/sentence.h"
#include "common/cuda/host_copy.cuh"
#include "common/cuda/queue.cuh"

namespace jztree {
namespace {

ffi::Error check(cudaStream_t stream, DeviceMemory scratch, ffi::Buffer<ffi::S32> value, ffi::Buffer<ffi::S32> failed,
                 ffi::Buffer<ffi::S32> numbers, ffi::Result<ffi::Buffer<ffi::S32>> out, std::string_view sentence) {
  return guarded([&] {
    if (value.element_count() != out->element_count() || failed.element_count() != 1)
      return invalid("check was called with arrays that do not fit together.");
    Queue queue(stream, scratch);
    queue.copy(out->typed_data(), value.typed_data(), static_cast<int64_t>(value.element_count()));
    int32_t which = to_host(queue, failed.typed_data(), 1)[0];
    if (which == 0) return ffi::Error::Success();
    auto host = to_host(queue, numbers.typed_data(), static_cast<int64_t>(numbers.element_count()));
    return invalid(filled(chosen(sentence, which), host.data(), host.size()));
  });
}

}  // namespace

JZTREE_HANDLER(jztree_check, check, "sentence");

}  // namespace jztree
