#include "kernel.h"

#include "xla/ffi/api/ffi.h"

namespace jztree {

XLA_FFI_Error* Kernel::call(XLA_FFI_CallFrame* frame) const {
  // Calls with an extension query the traits.
  bool initializes = frame->stage == XLA_FFI_ExecutionStage_INITIALIZE && !frame->extension_start;
  return (initializes ? initializer_ : handler_)->Call(frame);
}

}  // namespace jztree
