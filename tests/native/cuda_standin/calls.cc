// Calls of the library's handlers, with the call frames of XLA's interface (xla/ffi/api/c_api.h), and the functions
// that Python calls: tests/native/test_cuda_host_code.py.

#include <cuda_runtime_api.h>

#include <string>
#include <utility>
#include <vector>

#include "common/cuda/plain_call.h"
#include "resources.h"
#include "xla/ffi/api/c_api.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using standin::Kernels;

// XLA defines these types.
struct XLA_FFI_Error {
  std::string message;
};
struct XLA_FFI_ExecutionContext {
  standin::Stream* stream;  // null before the program runs
};

namespace {

XLA_FFI_Error* create_error(XLA_FFI_Error_Create_Args* args) { return new XLA_FFI_Error{args->message}; }

XLA_FFI_Error* get_stream(XLA_FFI_Stream_Get_Args* args) {
  if (!args->ctx->stream) return new XLA_FFI_Error{"only a call that runs has a stream."};
  args->stream = args->ctx->stream;
  return nullptr;
}

// With those functions that the handlers need.
const XLA_FFI_Api* api() {
  static const XLA_FFI_Api one = [] {
    XLA_FFI_Api made{};
    made.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    made.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
    made.XLA_FFI_Error_Create = create_error;
    made.XLA_FFI_Stream_Get = get_stream;
    return made;
  }();
  return &one;
}

XLA_FFI_CallFrame empty_frame(XLA_FFI_ExecutionStage stage, XLA_FFI_ExecutionContext* context) {
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = api();
  frame.ctx = context;
  frame.stage = stage;
  frame.args.struct_size = XLA_FFI_Args_STRUCT_SIZE;
  frame.rets.struct_size = XLA_FFI_Rets_STRUCT_SIZE;
  frame.attrs.struct_size = XLA_FFI_Attrs_STRUCT_SIZE;
  return frame;
}

// The arguments or the results of a call, at different addresses that nothing may read.
template <typename Type>
struct Buffers {
  std::vector<XLA_FFI_Buffer> buffers;
  std::vector<void*> pointers;
  std::vector<Type> types;

  Buffers(const jztree::PlainBuffer* plain, int64_t count, Type type, uintptr_t at)
      : types(static_cast<size_t>(count), type) {
    for (int64_t i = 0; i < count; ++i)
      buffers.push_back({XLA_FFI_Buffer_STRUCT_SIZE, nullptr, static_cast<XLA_FFI_DataType>(plain[i].type),
                         reinterpret_cast<void*>(at += uintptr_t{1} << 32), plain[i].rank,
                         const_cast<int64_t*>(plain[i].dims)});
    for (XLA_FFI_Buffer& buffer : buffers) pointers.push_back(&buffer);
  }
};

// Python describes attributes in this form, sorted by name.
struct Attribute {
  const char* name;
  int64_t type, dtype, count;  // dtype and count: of scalars and arrays; count: also of the bytes of a text
  void* value;
};

class Attributes {
 public:
  Attributes(const Attribute* given, int64_t count) : all_(given, given + count) {
    for (const Attribute& one : all_) {
      const auto dtype = static_cast<XLA_FFI_DataType>(one.dtype);
      const auto size = static_cast<size_t>(one.count);
      scalars_.push_back({dtype, one.value});
      arrays_.push_back({dtype, size, one.value});
      texts_.push_back({static_cast<const char*>(one.value), size});
      names_.push_back({one.name, std::string_view(one.name).size()});
    }
    for (size_t i = 0; i < all_.size(); ++i) {
      types_.push_back(static_cast<XLA_FFI_AttrType>(all_[i].type));
      name_pointers_.push_back(&names_[i]);
      values_.push_back(types_[i] == XLA_FFI_AttrType_SCALAR  ? static_cast<void*>(&scalars_[i])
                        : types_[i] == XLA_FFI_AttrType_ARRAY ? static_cast<void*>(&arrays_[i])
                                                              : static_cast<void*>(&texts_[i]));
    }
  }

  void put_into(XLA_FFI_Attrs* attributes) {
    attributes->size = static_cast<int64_t>(all_.size());
    attributes->types = types_.data();
    attributes->names = name_pointers_.data();
    attributes->attrs = values_.data();
  }

 private:
  std::vector<Attribute> all_;
  std::vector<XLA_FFI_Scalar> scalars_;
  std::vector<XLA_FFI_Array> arrays_;
  std::vector<XLA_FFI_ByteSpan> texts_, names_;
  std::vector<XLA_FFI_ByteSpan*> name_pointers_;
  std::vector<XLA_FFI_AttrType> types_;
  std::vector<void*> values_;
};

}  // namespace

// Resources of a kernel, by its name in the machine code. Returns whether the library has it.
EXPORT bool standin_describe(const char* name, int registers, int shared, int parameters) {
  auto& known = Kernels::all().by_name;
  auto found = known.find(name);
  if (found == known.end()) return false;
  found->second.registers = registers;
  found->second.shared = shared;
  found->second.parameters = parameters;
  return true;
}

// From now on, another GPU is current: without loaded kernels and permissions. bytes: the most shared memory of a
// block, with permission.
EXPORT void standin_change_gpu(int bytes) {
  Kernels::all().most_shared = bytes;
  if (++Kernels::all().gpu >= standin::most_gpus) Kernels::all().complain("there are too many GPUs.");
  for (auto& [name, kernel] : Kernels::all().by_name) {
    kernel.allowed = 0;
    kernel.loaded = false;
  }
}

EXPORT int standin_launches() { return Kernels::all().launches; }
// The number of times that a kernel was loaded.
EXPORT int standin_loads() { return Kernels::all().loads; }

// In this thread, the call of CUDA's runtime after the next `calls` ones fails.
EXPORT void standin_fail_after(int calls) { standin::calls_until_failure() = calls; }
// Whether this call came. Cancels it otherwise.
EXPORT bool standin_has_failed() { return std::exchange(standin::calls_until_failure(), -1) < 0; }

// The kernels without resources, and everything that was wrong since the last call, in lines.
EXPORT const char* standin_complaints() {
  static std::string text;
  text.clear();
  for (auto& [name, kernel] : Kernels::all().by_name)
    if (kernel.registers == 0) text += name + ": its resources are not known.\n";
  for (const std::string& line : std::exchange(Kernels::all().wrong, {})) text += line + "\n";
  return text.c_str();
}

// The traits of a handler, as XLA queries them.
EXPORT uint32_t standin_traits(XLA_FFI_Handler* handler) {
  XLA_FFI_Metadata metadata{};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  metadata.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension{{XLA_FFI_Metadata_Extension_STRUCT_SIZE, XLA_FFI_Extension_Metadata, nullptr},
                                       &metadata};
  XLA_FFI_CallFrame frame = empty_frame(XLA_FFI_ExecutionStage_EXECUTE, nullptr);
  frame.extension_start = &extension.extension_base;
  handler(&frame);
  return metadata.traits;
}

// Call a handler with these shapes; the last result is its work memory. captures: XLA records the call in a command
// buffer. Returns the error, or an empty text.
EXPORT const char* standin_call(XLA_FFI_Handler* handler, int stage, bool captures,
                                const jztree::PlainBuffer* arguments, int64_t num_arguments,
                                const jztree::PlainBuffer* results, int64_t num_results, const Attribute* attributes,
                                int64_t num_attributes) {
  static thread_local std::string text;
  Buffers<XLA_FFI_ArgType> in(arguments, num_arguments, XLA_FFI_ArgType_BUFFER, uintptr_t{1} << 40);
  Buffers<XLA_FFI_RetType> out(results, num_results, XLA_FFI_RetType_BUFFER, uintptr_t{1} << 44);
  Attributes given(attributes, num_attributes);
  standin::Stream stream{captures, {}, 0};
  const bool runs = stage == XLA_FFI_ExecutionStage_EXECUTE;
  XLA_FFI_ExecutionContext context{runs ? &stream : nullptr};
  XLA_FFI_CallFrame frame = empty_frame(static_cast<XLA_FFI_ExecutionStage>(stage), &context);
  frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, num_arguments, in.types.data(), in.pointers.data()};
  frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, num_results, out.types.data(), out.pointers.data()};
  given.put_into(&frame.attrs);
  standin::current() = context.stream;
  XLA_FFI_Error* error = handler(&frame);
  standin::current() = nullptr;
  text = error ? error->message : "";
  delete error;
  if (!error && runs && stream.nodes.empty() && stream.other_nodes == 0)
    Kernels::all().complain("a call puts nothing on its stream.");
  if (cudaPeekAtLastError() != cudaSuccess) text += " The last error is not forgotten.";
  cudaGetLastError();
  return text.c_str();
}
