#include "kernel.h"

#include "xla/ffi/api/ffi.h"

namespace jztree {

XLA_FFI_Error* Kernel::call(XLA_FFI_CallFrame* frame) const { return handler_->Call(frame); }

}  // namespace jztree
