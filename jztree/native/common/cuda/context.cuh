// Kernels on GPUs. What they work with is `Queue`, work that is put on the stream of the call.
#pragma once

#include "common/kernel.h"
#include "queue.cuh"

namespace jztree {

template <typename Interface, typename Work>
ffi::Error run_on_gpu(const char* kernel, cudaStream_t stream, DeviceMemory& scratch, const ffi::RemainingArgs& given,
                      const ffi::RemainingRets& wanted, const ffi::Dictionary& attributes, const Work& work) {
  return guarded([&] {
    Arguments arguments = read_call(kernel, given, wanted, attributes);
    Queue queue(stream, scratch);
    Interface::run(arguments, [&](const auto& in) {
      for (const auto& [old, result] : arguments.continued())
        if (old->data != result->data)
          queue.copy(static_cast<char*>(result->data), static_cast<const char*>(old->data), old->bytes());
      work(queue, in);
    });
  });
}

}  // namespace jztree

#define JZTREE_BACKEND_KERNEL(name, Runner, traits)                                                          \
  static jztree::ffi::Error call_##name(cudaStream_t stream, jztree::DeviceMemory scratch,                   \
                                        jztree::ffi::RemainingArgs given, jztree::ffi::RemainingRets wanted, \
                                        jztree::ffi::Dictionary attributes) {                                \
    return jztree::run_on_gpu<Runner>(#name, stream, scratch, given, wanted, attributes,                     \
                                      [](jztree::Queue& queue, const auto& in) { name(queue, in); });        \
  }                                                                                                          \
  JZTREE_DEFINE_SYMBOL(name, call_##name,                                                                    \
                       jztree::ffi::Ffi::Bind()                                                              \
                           .Ctx<jztree::ffi::PlatformStream<cudaStream_t>>()                                 \
                           .Ctx<jztree::DeviceMemory>()                                                      \
                           .RemainingArgs()                                                                  \
                           .RemainingRets()                                                                  \
                           .Attrs<jztree::ffi::Dictionary>(),                                                \
                       {traits});                                                                            \
  static const jztree::Registered registered_##name(#name)
