// The kernel that raises at run time. The one that has to wait for the GPU: an error must be known before the handler
// returns.

#include <string>
#include <vector>

#include "../common/sentence.h"
#include "queue.cuh"

namespace jztree {
namespace {

std::vector<int32_t> to_host(Queue& queue, const ffi::Buffer<ffi::S32>& values) {
  std::vector<int32_t> host(values.element_count());
  Queue::check(cudaMemcpyAsync(host.data(), values.typed_data(), values.size_bytes(), cudaMemcpyDeviceToHost,
                               queue.stream()));
  Queue::check(cudaStreamSynchronize(queue.stream()));
  return host;
}

ffi::Error check(cudaStream_t stream, ffi::ScratchAllocator scratch, ffi::Buffer<ffi::S32> value,
                 ffi::Buffer<ffi::S32> failed, ffi::Buffer<ffi::S32> numbers, ffi::Result<ffi::Buffer<ffi::S32>> out,
                 std::string_view sentence) {
  return guarded([&] {
    if (value.element_count() != out->element_count() || failed.element_count() != 1)
      return invalid("check was called with arrays that do not fit together.");
    Queue queue(stream, scratch);
    queue.copy(out->typed_data(), value.typed_data(), static_cast<int64_t>(value.element_count()));
    if (to_host(queue, failed)[0] == 0) return ffi::Error::Success();
    std::vector<int32_t> host = to_host(queue, numbers);
    return invalid(filled(std::string(sentence), host.data(), host.size()));
  });
}

}  // namespace

JZTREE_HANDLER(jztree_check, check,
               ffi::Ffi::Bind()
                   .Ctx<Stream>()
                   .Ctx<ffi::ScratchAllocator>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Ret<ffi::Buffer<ffi::S32>>()
                   .Attr<std::string_view>("sentence"));

}  // namespace jztree
