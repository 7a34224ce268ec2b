// Compiled by the host's compiler: XLA's header would take nvcc several times as long.

#include "common/handler.h"

#include "gpu_kernel.h"

namespace jztree {

xla::ffi::Ffi* handler_of(const char* kernel, WorkOnGpu work, bool capturable) {
  auto call = [=](void* stream, ffi::RemainingArgs given, ffi::RemainingRets wanted, ffi::Dictionary values) {
    return guarded([&] {
      GivenAttributes attributes(values);
      Arguments arguments = read_call(kernel, given, wanted, attributes);
      Buffer scratch = arguments.take_last_result();
      put_on_stream(work, stream, scratch, arguments);
    });
  };
  auto binding =
      ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>().RemainingArgs().RemainingRets().Attrs<ffi::Dictionary>();
  if (capturable) return binding.To(call, {ffi::Traits::kCmdBufferCompatible}).release();
  return binding.To(call).release();
}

}  // namespace jztree
