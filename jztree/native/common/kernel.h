// Registration of kernels, and their dispatch on dtype and dimensions. XLA calls them through handler.h.
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "arguments.h"

// The numbers of dimensions to compile, as a bit mask: bit d for d dimensions. Fewer compile faster, for example to
// check that the library compiles. Dimension 1 is always needed, because kernels scan columns of numbers as positions.
#ifndef JZTREE_DIMS
#define JZTREE_DIMS 0b111111110
#endif

namespace xla::ffi {
class Ffi;
}

namespace jztree {

// Dispatch of kernels whose arguments always have the same dtypes.
template <typename Interface>
struct Plainly {
  template <typename Work>
  static void run(Arguments& arguments, RowPadder&, const Work& work) {
    Interface in(arguments);
    arguments.expect_end();
    work(in);
  }
};

// The numbers of dimensions to compile an interface for: its `compiled_dims`, if it declares them.
template <typename Interface, typename = void>
constexpr unsigned declared_dims = padded_dims;
template <typename Interface>
constexpr unsigned declared_dims<Interface, std::void_t<decltype(Interface::compiled_dims)>> = Interface::compiled_dims;

// Dispatch on the dtype and dimensions of the first array of float rows among the arguments.
template <template <int, typename> class Interface>
struct ByPositions {
  template <typename Work>
  static void run(Arguments& arguments, RowPadder& padder, const Work& work) {
    const Buffer& positions = arguments.positions();
    return positions.type == XLA_FFI_DataType_F32 ? run_dims<float>(positions.dims[1], arguments, padder, work)
                                                  : run_dims<double>(positions.dims[1], arguments, padder, work);
  }

 private:
  static constexpr unsigned declared = declared_dims<Interface<1, float>>, compiled = declared & (JZTREE_DIMS);

  // The number of dimensions of the rows that a kernel gets. If the interface is not for `dims` dimensions
  // and `dims` is at least 4, rows are padded to the next compiled number. Returns 0 if the library has
  // no suitable number.
  static constexpr int width_of(int64_t dims) {
    for (int width = 1; width <= max_dims; ++width)
      if ((compiled >> width & 1) && (width == dims || (dims > 3 && width > dims && !(declared >> dims & 1))))
        return width;
    return 0;
  }
  static constexpr unsigned possible_dims() {
    unsigned possible = 0;
    for (int dims = 1; dims <= max_dims; ++dims)
      if (width_of(dims) > 0) possible |= 1u << dims;
    return possible;
  }

  template <typename T, typename Work>
  static void run_dims(int64_t dims, Arguments& arguments, RowPadder& padder, const Work& work) {
    const int width = width_of(dims);
    if (width == 0) refuse_dims(dims, possible_dims());
    if (width == dims) return run_compiled<1, T>(dims, arguments, padder, work);
    arguments.pad_rows(dims, width, padder);
    run_compiled<1, T>(width, arguments, padder, work);
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
  // handler: runs the kernel. initializer: prepares it at an earlier stage of the program, without running it; may be
  // null.
  Kernel(const char* name, xla::ffi::Ffi* handler, xla::ffi::Ffi* initializer = nullptr)
      : name_(name), handler_(handler), initializer_(initializer) {
    all().push_back(this);
  }
  Kernel(const Kernel&) = delete;

  static std::vector<const Kernel*>& all() {
    static std::vector<const Kernel*> list;
    return list;
  }

  const char* name() const { return name_; }
  // The entry point for XLA, for both stages.
  XLA_FFI_Error* call(XLA_FFI_CallFrame* frame) const;

 private:
  const char* name_;
  xla::ffi::Ffi *handler_, *initializer_;
};

// Returns the kernels' names, each followed by a comma.
inline const char* kernel_names() {
  static const std::string names = [] {
    std::string joined;
    for (const Kernel* kernel : Kernel::all()) joined += std::string(kernel->name()) + ",";
    return joined;
  }();
  return names.c_str();
}

}  // namespace jztree

// Defines a kernel that calls the function `name` with the backend's context and a struct of arguments. Function and
// struct are templates over dimensions and dtype. XLA may capture the kernel in a command buffer. The library exports
// it to Python as `jztree_<name>`.
#define JZTREE_KERNEL(name, Interface) JZTREE_BACKEND_KERNEL(name, jztree::ByPositions<Interface>, true)
// Like JZTREE_KERNEL, for a function and a struct that are not templates.
#define JZTREE_PLAIN_KERNEL(name, Interface) JZTREE_BACKEND_KERNEL(name, jztree::Plainly<Interface>, true)
// Like JZTREE_PLAIN_KERNEL, for work that waits for the device and reads numbers, so XLA must not capture it.
#define JZTREE_READING_KERNEL(name, Interface) JZTREE_BACKEND_KERNEL(name, jztree::Plainly<Interface>, false)

// For the backends: defines a kernel from the function work_of_<name>, which reads the arguments and does the work.
#define JZTREE_DEFINE_KERNEL(name, BackendKernel, capturable)                                                \
  static const BackendKernel kernel_##name(#name, work_of_##name, capturable);                               \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* jztree_##name(XLA_FFI_CallFrame* frame) { \
    return kernel_##name.call(frame);                                                                        \
  }                                                                                                          \
  static_assert(true, "the macro ends without a semicolon")
