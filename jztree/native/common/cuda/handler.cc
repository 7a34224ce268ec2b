// Compiled by the host's compiler: XLA's header would take nvcc several times as long.

#include "common/handler.h"

#include <cstdlib>
#include <mutex>
#include <set>

#include "gpu_kernel.h"

namespace jztree {
namespace {

// Call body(scratch, arguments), with the memory for work arrays.
template <typename Body>
ffi::Error with_call(const char* kernel, const ffi::RemainingArgs& given, const ffi::RemainingRets& wanted,
                     const ffi::Dictionary& values, const Body& body) {
  return guarded([&] {
    GivenAttributes attributes(values);
    Arguments arguments = read_call(kernel, given, wanted, attributes);
    Buffer scratch = arguments.take_last_result();
    body(scratch, arguments);
  });
}

// The environment variable JZTREE_COMMAND_BUFFERS=0 keeps kernels out of command buffers.
bool uses_command_buffers() {
  const char* given = std::getenv("JZTREE_COMMAND_BUFFERS");
  return !given || std::string_view(given) != "0";
}

// Bytes that are equal for two calls of a kernel only if they launch the same GPU code: types, shapes and attributes.
class Signature {
 public:
  explicit Signature(const XLA_FFI_CallFrame& frame) {
    for (int64_t i = 0; i < frame.args.size; ++i) add_buffer(*static_cast<const XLA_FFI_Buffer*>(frame.args.args[i]));
    for (int64_t i = 0; i < frame.rets.size; ++i) add_buffer(*static_cast<const XLA_FFI_Buffer*>(frame.rets.rets[i]));
    for (int64_t i = 0; i < frame.attrs.size; ++i) add_attribute(frame.attrs.types[i], frame.attrs.attrs[i]);
  }

  void add(int64_t number) { add_bytes(&number, sizeof(number)); }
  std::string take() { return std::move(bytes_); }

 private:
  void add_buffer(const XLA_FFI_Buffer& buffer) {
    add(buffer.dtype);
    add(buffer.rank);
    add_bytes(buffer.dims, static_cast<size_t>(buffer.rank) * sizeof(int64_t));
  }
  // A kernel always gets the same attributes, sorted by name. No attribute is a dictionary.
  void add_attribute(XLA_FFI_AttrType type, const void* value) {
    if (type == XLA_FFI_AttrType_SCALAR) {
      const auto& scalar = *static_cast<const XLA_FFI_Scalar*>(value);
      add_values(scalar.dtype, 1, scalar.value);
    } else if (type == XLA_FFI_AttrType_ARRAY) {
      const auto& array = *static_cast<const XLA_FFI_Array*>(value);
      add_values(array.dtype, array.size, array.data);
    } else if (type == XLA_FFI_AttrType_STRING) {
      const auto& text = *static_cast<const XLA_FFI_ByteSpan*>(value);
      add(static_cast<int64_t>(text.len));
      add_bytes(text.ptr, text.len);
    }
  }
  void add_values(XLA_FFI_DataType type, size_t count, const void* values) {
    add(static_cast<int64_t>(count));
    add_bytes(values, count * ffi::ByteWidth(static_cast<ffi::DataType>(type)));
  }
  void add_bytes(const void* bytes, size_t count) { bytes_.append(static_cast<const char*>(bytes), count); }

  std::string bytes_;
};

// Calls an initializer once for each GPU and signature.
class OnceForEach : public ffi::Ffi {
 public:
  explicit OnceForEach(ffi::Ffi* initializer) : initializer_(initializer) {}

  XLA_FFI_Error* Call(XLA_FFI_CallFrame* frame) const override {
    Signature signature(*frame);
    signature.add(current_gpu());
    std::string key = signature.take();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (done_.count(key)) return nullptr;
    }
    // Without the lock: the call may wait for its GPU, which may wait for the thread of another GPU.
    XLA_FFI_Error* error = initializer_->Call(frame);
    std::lock_guard<std::mutex> lock(mutex_);
    done_.insert(std::move(key));
    return error;
  }

 private:
  ffi::Ffi* initializer_;
  mutable std::mutex mutex_;
  mutable std::set<std::string> done_;
};

}  // namespace

xla::ffi::Ffi* handler_of(const char* kernel, WorkOnGpu work, bool capturable) {
  auto call = [=](void* stream, ffi::RemainingArgs given, ffi::RemainingRets wanted, ffi::Dictionary values) {
    return with_call(kernel, given, wanted, values, [&](const Buffer& scratch, Arguments& arguments) {
      put_on_stream(work, stream, scratch, arguments);
    });
  };
  auto binding =
      ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>().RemainingArgs().RemainingRets().Attrs<ffi::Dictionary>();
  if (capturable && uses_command_buffers()) return binding.To(call, {ffi::Traits::kCmdBufferCompatible}).release();
  return binding.To(call).release();
}

xla::ffi::Ffi* initializer_of(const char* kernel, WorkOnGpu work) {
  auto call = [=](ffi::RemainingArgs given, ffi::RemainingRets wanted, ffi::Dictionary values) {
    // The call itself reports any error again. It also loads what could not be loaded here.
    with_call(kernel, given, wanted, values,
              [&](const Buffer& scratch, Arguments& arguments) { load_kernels(work, scratch, arguments); });
    return ffi::Error::Success();
  };
  auto binding = ffi::Ffi::BindInitialize().RemainingArgs().RemainingRets().Attrs<ffi::Dictionary>();
  return new OnceForEach(binding.To(call).release());
}

}  // namespace jztree
