// How a kernel is run: its arguments read (arguments.h), dispatched on dtype and dimensions, and errors as sentences.
#pragma once

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"

// Fewer compile in half the time, where a library is only to be seen to compile, or to be compared.
#ifndef JZTREE_LEAST_DIMS
#define JZTREE_LEAST_DIMS 1
#endif
#ifndef JZTREE_MOST_DIMS
#define JZTREE_MOST_DIMS 8
#endif

namespace jztree {

// Runs a handler's work; exceptions must not reach XLA.
template <typename Body>
ffi::Error guarded(const Body& body) {
  try {
    body();
    return ffi::Error::Success();
  } catch (const Refusal& refusal) {
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, std::string("jztree: ") + refusal.what());
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "jztree: out of memory for work arrays on the host.");
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kInternal, std::string("jztree: ") + error.what());
  }
}

// Arguments that are always of the same dtypes.
template <typename Interface>
struct Plainly {
  template <typename Work>
  static void run(Arguments& arguments, const Work& work) {
    Interface in(arguments);
    arguments.expect_end();
    work(in);
  }
};

// Arguments whose dtype and dimensions are those of the first array of float rows among them. What is compiled goes up
// to most_dims of the interface.
template <template <int, typename> class Interface>
struct ByPositions {
  template <typename Work>
  static void run(Arguments& arguments, const Work& work) {
    for (const Buffer& buffer : arguments.all_arguments()) {
      if (buffer.rank != 2 || (buffer.type != ffi::F32 && buffer.type != ffi::F64)) continue;
      return buffer.type == ffi::F32 ? run_dims<JZTREE_LEAST_DIMS, float>(buffer.dims[1], arguments, work)
                                     : run_dims<JZTREE_LEAST_DIMS, double>(buffer.dims[1], arguments, work);
    }
    throw Refusal("positions must be float32 or float64 and have shape (n, d).");
  }

 private:
  template <int D, typename T, typename Work>
  static void run_dims(int64_t dims, Arguments& arguments, const Work& work) {
    constexpr int most = std::min(Interface<1, T>::most_dims, JZTREE_MOST_DIMS);
    if constexpr (D > most) {
      throw Refusal("positions have " + std::to_string(dims) + " dimensions; " + std::to_string(JZTREE_LEAST_DIMS) +
                    " to " + std::to_string(most) + " are possible here.");
    } else {
      if (dims == D) return Plainly<Interface<D, T>>::run(arguments, work);
      run_dims<D + 1, T>(dims, arguments, work);
    }
  }
};

// What XLA passes to every kernel.
inline Arguments read_call(const char* kernel, const ffi::RemainingArgs& given, const ffi::RemainingRets& wanted,
                           const ffi::Dictionary& attributes) {
  auto as_buffer = [](const ffi::AnyBuffer& buffer) {
    auto dims = buffer.dimensions();
    return Buffer{buffer.element_type(), dims.begin(), static_cast<int>(dims.size()), buffer.untyped_data()};
  };
  std::vector<Buffer> arguments, results;
  for (size_t i = 0; i < given.size(); ++i) arguments.push_back(as_buffer(given.get<ffi::AnyBuffer>(i).value()));
  for (size_t i = 0; i < wanted.size(); ++i) results.push_back(as_buffer(*wanted.get<ffi::AnyBuffer>(i).value()));
  return Arguments(kernel, std::move(arguments), std::move(results), Attributes(attributes));
}

// The kernels of a library. Each adds itself when the library is loaded.
struct KernelEntry {
  const char* name;
  int64_t (*scratch_bytes)(Arguments&);  // null where nobody has to know
};

inline std::vector<KernelEntry>& kernel_entries() {
  static std::vector<KernelEntry> entries;
  return entries;
}

struct Registered {
  explicit Registered(const char* name, int64_t (*scratch_bytes)(Arguments&) = nullptr) {
    kernel_entries().push_back({name, scratch_bytes});
  }
};

// Their names, a comma after each.
inline const char* kernel_names() {
  static const std::string names = [] {
    std::string joined;
    for (const KernelEntry& entry : kernel_entries()) joined += std::string(entry.name) + ",";
    return joined;
  }();
  return names.c_str();
}

}  // namespace jztree

// The symbol `jztree_<name>`, which Python finds in the library. What comes after the name is for
// XLA_FFI_DEFINE_HANDLER_SYMBOL.
#define JZTREE_DEFINE_SYMBOL(name, ...)                                                                     \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* jztree_##name(XLA_FFI_CallFrame* frame); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(jztree_##name, __VA_ARGS__)

// Defines a kernel: the function `name` does its work, called with the backend's context and a struct of arguments,
// which is a template over dimensions and dtype, as the function is. XLA may capture it in a command buffer.
#define JZTREE_KERNEL(name, Interface) \
  JZTREE_BACKEND_KERNEL(name, jztree::ByPositions<Interface>, jztree::ffi::Traits::kCmdBufferCompatible)
// The same where neither is a template.
#define JZTREE_PLAIN_KERNEL(name, Interface) \
  JZTREE_BACKEND_KERNEL(name, jztree::Plainly<Interface>, jztree::ffi::Traits::kCmdBufferCompatible)
// The same where the work waits for the device and reads numbers, so that nobody may capture it.
#define JZTREE_READING_KERNEL(name, Interface) JZTREE_BACKEND_KERNEL(name, jztree::Plainly<Interface>, )
