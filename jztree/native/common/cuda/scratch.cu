// The size of the work arrays of a call: Python requests it when it traces the call (kernels/_scratch.py).

#include <cstdint>
#include <exception>
#include <string_view>
#include <vector>

#include "context.cuh"

namespace jztree {
namespace {

// An array without data: its type and shape.
struct PlainBuffer {
  int64_t type, rank;
  const int64_t* dims;
};

std::vector<Buffer> buffers(const PlainBuffer* plain, int64_t count) {
  static unsigned char nowhere;  // not null, like the arrays of a real call; never read
  std::vector<Buffer> list;
  for (int64_t i = 0; i < count; ++i)
    list.push_back(
        {static_cast<XLA_FFI_DataType>(plain[i].type), plain[i].dims, static_cast<int>(plain[i].rank), &nowhere});
  return list;
}

// Integer attributes.
struct PlainAttribute {
  const char* name;
  int64_t count;
  const int64_t* numbers;
};

class PlainAttributes : public Attributes {
 public:
  PlainAttributes(const PlainAttribute* plain, int64_t count) : plain_(plain), count_(count) {}

  int64_t integer(const char* name) const override { return named(name).numbers[0]; }
  bool flag(const char* name) const override { return integer(name) != 0; }
  Integers integers(const char* name) const override {
    return {named(name).numbers, static_cast<size_t>(named(name).count)};
  }
  // Only error messages depend on it.
  std::string_view text(const char*) const override { return {}; }

 private:
  const PlainAttribute& named(const char* name) const {
    for (int64_t i = 0; i < count_; ++i)
      if (std::string_view(plain_[i].name) == name) return plain_[i];
    refuse(name);
  }

  const PlainAttribute* plain_;
  int64_t count_;
};

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
