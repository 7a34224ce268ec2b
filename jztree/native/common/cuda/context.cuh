// Kernels on GPUs. What they work with is `Queue`, work that is put on the stream of the call.
//
// Memory for work arrays is one more result of the call, the last, so that XLA plans it before anything runs, and no
// call can fail for want of memory in the middle of a sequence of collectives. How large it must be, Python asks when
// it traces (scratch.cu): the same function is run with a Queue that only measures. So all that the host does, and not
// only the sizes of work arrays, must follow from shapes and attributes; it must not look at a number in an array. That
// is also what lets XLA record the work in a command buffer and replay it (kernel.h).
#pragma once

#include "common/kernel.h"
#include "queue.cuh"

namespace jztree {

template <typename Interface, typename Work>
void put_on(Queue& queue, Arguments& arguments, const Work& work) {
  Interface::run(arguments, [&](const auto& in) {
    for (const auto& [old, result] : arguments.continued())
      if (old->data != result->data)
        queue.copy(static_cast<char*>(result->data), static_cast<const char*>(old->data), old->bytes());
    work(queue, in);
  });
}

template <typename Interface, typename Work>
ffi::Error run_on_gpu(const char* kernel, cudaStream_t stream, const ffi::RemainingArgs& given,
                      const ffi::RemainingRets& wanted, const ffi::Dictionary& attributes, const Work& work) {
  return guarded([&] {
    Arguments arguments = read_call(kernel, given, wanted, attributes);
    Buffer scratch = arguments.take_last_result();
    Queue queue(stream, scratch.data, scratch.bytes());
    put_on<Interface>(queue, arguments, work);
  });
}

template <typename Interface, typename Work>
int64_t measured(Arguments& arguments, const Work& work) {
  Queue queue = Queue::that_measures();
  put_on<Interface>(queue, arguments, work);
  return queue.scratch_bytes();
}

}  // namespace jztree

#define JZTREE_BACKEND_KERNEL(name, Runner, traits)                                                              \
  static constexpr auto work_of_##name = [](jztree::Queue& queue, const auto& in) { name(queue, in); };          \
  static jztree::ffi::Error call_##name(cudaStream_t stream, jztree::ffi::RemainingArgs given,                   \
                                        jztree::ffi::RemainingRets wanted, jztree::ffi::Dictionary attributes) { \
    return jztree::run_on_gpu<Runner>(#name, stream, given, wanted, attributes, work_of_##name);                 \
  }                                                                                                              \
  JZTREE_DEFINE_SYMBOL(name, call_##name,                                                                        \
                       jztree::ffi::Ffi::Bind()                                                                  \
                           .Ctx<jztree::ffi::PlatformStream<cudaStream_t>>()                                     \
                           .RemainingArgs()                                                                      \
                           .RemainingRets()                                                                      \
                           .Attrs<jztree::ffi::Dictionary>(),                                                    \
                       {traits});                                                                                \
  static const jztree::Registered registered_##name(                                                             \
      #name, [](jztree::Arguments& arguments) { return jztree::measured<Runner>(arguments, work_of_##name); })
