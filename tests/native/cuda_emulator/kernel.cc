// Replaces native/common/kernel.cc: calls kernels with the functions of the emulated runtime.

#include "common/kernel.h"

#include <xla/ffi/api/ffi.h>

#include "common/cpu/subnormals.h"

namespace jztree {

XLA_FFI_Error* Kernel::call(XLA_FFI_CallFrame* frame) const {
  KeepSubnormals kept;  // like CUDA code
  emulator::Handler initializer = [this](XLA_FFI_CallFrame* of) { return initializer_->Call(of); };
  return emulator::as_on_a_gpu(name_, [this](XLA_FFI_CallFrame* of) { return handler_->Call(of); }, frame, initializer);
}

}  // namespace jztree
