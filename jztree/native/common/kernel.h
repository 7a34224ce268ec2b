// How a kernel is found and run: dispatched on dtype and dimensions, and called by XLA (handler.h).
#pragma once

#include <string>
#include <vector>

#include "arguments.h"

// The dimensions that are compiled, a bit for each, from bit 1 on. Fewer take less time, where a library is only to be
// seen to compile, to be compared, or wanted soon. Dimension 1 is needed by columns of numbers that are looked through.
#ifndef JZTREE_DIMS
#define JZTREE_DIMS 0b111111110
#endif

namespace xla::ffi {
class Ffi;
}

namespace jztree {

// Arguments that are always of the same dtypes.
template <typename Interface>
struct Plainly {
  template <typename Work>
  static void run(Arguments& arguments, RowPadder&, const Work& work) {
    Interface in(arguments);
    arguments.expect_end();
    work(in);
  }
};

// Arguments whose dtype and dimensions are those of the first array of float rows among them.
template <template <int, typename> class Interface>
struct ByPositions {
  template <typename Work>
  static void run(Arguments& arguments, RowPadder& padder, const Work& work) {
    const Buffer& positions = arguments.positions();
    return positions.type == XLA_FFI_DataType_F32 ? run_dims<float>(positions.dims[1], arguments, padder, work)
                                                  : run_dims<double>(positions.dims[1], arguments, padder, work);
  }

 private:
  static constexpr unsigned compiled = Interface<1, float>::compiled_dims & (JZTREE_DIMS);
  // Whether rows of 4 dimensions or more are padded to the largest number.
  static constexpr bool pads = Interface<1, float>::compiled_dims == padded_dims && (compiled >> max_dims & 1);
  static constexpr unsigned possible = pads ? compiled | (dims_up_to(max_dims) & ~dims_up_to(3)) : compiled;

  template <typename T, typename Work>
  static void run_dims(int64_t dims, Arguments& arguments, RowPadder& padder, const Work& work) {
    if (dims < 1 || dims > max_dims || !(possible >> dims & 1)) refuse_dims(dims, possible);
    if (compiled >> dims & 1) return run_compiled<1, T>(dims, arguments, padder, work);
    arguments.pad_rows(dims, max_dims, padder);
    run_compiled<1, T>(max_dims, arguments, padder, work);
    arguments.unpad_results();
  }

  template <int D, typename T, typename Work>
  static void run_compiled(int64_t dims, Arguments& arguments, RowPadder& padder, const Work& work) {
    if constexpr (compiled >> D & 1)
      if (dims == D) return Plainly<Interface<D, T>>::run(arguments, padder, work);
    if constexpr (D < max_dims) run_compiled<D + 1, T>(dims, arguments, padder, work);
  }
};

// A kernel of this library. It adds itself to the list when the library is loaded.
class Kernel {
 public:
  Kernel(const char* name, xla::ffi::Ffi* handler) : name_(name), handler_(handler) { all().push_back(this); }
  Kernel(const Kernel&) = delete;

  static std::vector<const Kernel*>& all() {
    static std::vector<const Kernel*> list;
    return list;
  }

  const char* name() const { return name_; }
  // What XLA calls.
  XLA_FFI_Error* call(XLA_FFI_CallFrame* frame) const;

 private:
  const char* name_;
  xla::ffi::Ffi* handler_;
};

// The names of all, a comma after each.
inline const char* kernel_names() {
  static const std::string names = [] {
    std::string joined;
    for (const Kernel* kernel : Kernel::all()) joined += std::string(kernel->name()) + ",";
    return joined;
  }();
  return names.c_str();
}

}  // namespace jztree

// Defines a kernel: the function `name` does its work, called with the backend's context and a struct of arguments,
// which is a template over dimensions and dtype, as the function is. XLA may capture it in a command buffer.
// Python finds it in the library as `jztree_<name>`.
#define JZTREE_KERNEL(name, Interface) JZTREE_BACKEND_KERNEL(name, jztree::ByPositions<Interface>, true)
// The same where neither is a template.
#define JZTREE_PLAIN_KERNEL(name, Interface) JZTREE_BACKEND_KERNEL(name, jztree::Plainly<Interface>, true)
// The same where the work waits for the device and reads numbers, so that nobody may capture it.
#define JZTREE_READING_KERNEL(name, Interface) JZTREE_BACKEND_KERNEL(name, jztree::Plainly<Interface>, false)

// Of the backends: a kernel from the function work_of_<name>, which reads the arguments and does the work.
#define JZTREE_DEFINE_KERNEL(name, BackendKernel, capturable)                                                \
  static const BackendKernel kernel_##name(#name, work_of_##name, capturable);                               \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* jztree_##name(XLA_FFI_CallFrame* frame) { \
    return kernel_##name.call(frame);                                                                        \
  }                                                                                                          \
  static_assert(true, "the macro ends without a semicolon")
