// The size of the work arrays of a call: Python requests it when it traces the call (kernels/_scratch.py).

#include <cstdint>
#include <exception>
#include <string_view>

#include "context.cuh"
#include "plain_call.h"

namespace jztree {
namespace {

int64_t measured(const Kernel* kernel, Arguments& arguments) {
  Queue queue = Queue::that_measures();
  static_cast<const GpuKernel*>(kernel)->work()(queue, arguments);
  return queue.scratch_bytes();
}

}  // namespace
}  // namespace jztree

// Size in bytes. If the kernel cannot be called like this, the call itself raises the error; here the result is 0.
extern "C" __attribute__((visibility("default"))) int64_t jztree_scratch_bytes(
    const char* kernel, const jztree::PlainBuffer* arguments, int64_t num_arguments, const jztree::PlainBuffer* results,
    int64_t num_results, const jztree::PlainAttribute* attributes, int64_t num_attributes) {
  using namespace jztree;
  try {
    PlainAttributes plain(attributes, num_attributes);
    Arguments call(kernel, buffers(arguments, num_arguments), buffers(results, num_results), plain);
    for (const Kernel* entry : Kernel::all())
      if (std::string_view(kernel) == entry->name()) return measured(entry, call);
  } catch (const std::exception&) {
  }
  return 0;
}
