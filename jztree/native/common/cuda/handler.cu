#include "common/handler.h"
#include "context.cuh"

namespace jztree {

xla::ffi::Ffi* handler_of(const char* kernel, WorkOnGpu work, bool capturable) {
  auto call = [=](cudaStream_t stream, ffi::RemainingArgs given, ffi::RemainingRets wanted, ffi::Dictionary values) {
    return guarded([&] {
      GivenAttributes attributes(values);
      Arguments arguments = read_call(kernel, given, wanted, attributes);
      Buffer scratch = arguments.take_last_result();
      Queue queue(stream, scratch.data, scratch.bytes());
      work(queue, arguments);
    });
  };
  auto binding = ffi::Ffi::Bind()
                     .Ctx<ffi::PlatformStream<cudaStream_t>>()
                     .RemainingArgs()
                     .RemainingRets()
                     .Attrs<ffi::Dictionary>();
  if (capturable) return binding.To(call, {ffi::Traits::kCmdBufferCompatible}).release();
  return binding.To(call).release();
}

void continue_results(Queue& queue, const Arguments& arguments) {
  for (const auto& [old, result] : arguments.continued())
    if (old->data != result->data)
      queue.copy(static_cast<char*>(result->data), static_cast<const char*>(old->data), old->bytes());
}

}  // namespace jztree
