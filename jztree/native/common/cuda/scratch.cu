// How much memory for its work arrays a call will need: Python asks when it traces the call (kernels/_scratch.py).

#include <cstdint>
#include <exception>
#include <string_view>
#include <vector>

#include "common/kernel.h"

namespace jztree {
namespace {

// An array of which no more is known than its kind.
struct PlainBuffer {
  int64_t type, rank;
  const int64_t* dims;
};

std::vector<Buffer> buffers(const PlainBuffer* plain, int64_t count) {
  static unsigned char nowhere;  // not null, as no array is in a call; nobody looks there
  std::vector<Buffer> list;
  for (int64_t i = 0; i < count; ++i)
    list.push_back(
        {static_cast<ffi::DataType>(plain[i].type), plain[i].dims, static_cast<int>(plain[i].rank), &nowhere});
  return list;
}

}  // namespace
}  // namespace jztree

// Bytes. If the kernel cannot be called like this it says so itself, where it is called: here that is 0 bytes.
extern "C" __attribute__((visibility("default"))) int64_t jztree_scratch_bytes(
    const char* kernel, const jztree::PlainBuffer* arguments, int64_t num_arguments, const jztree::PlainBuffer* results,
    int64_t num_results, const jztree::PlainAttribute* attributes, int64_t num_attributes) {
  using namespace jztree;
  try {
    Arguments call(kernel, buffers(arguments, num_arguments), buffers(results, num_results),
                   Attributes(attributes, num_attributes));
    for (const KernelEntry& entry : kernel_entries())
      if (std::string_view(kernel) == entry.name) return entry.scratch_bytes(call);
  } catch (const std::exception&) {
  }
  return 0;
}
