// A handler that raises an error. It replaces the kernels on platforms for which this installation has none.

#include "common/handler.h"

namespace jztree {
namespace {

ffi::Error missing(ffi::RemainingArgs, ffi::RemainingRets) {
  return ffi::Error(ffi::ErrorCode::kUnimplemented,
                    "jztree: this installation has no kernels for the device of the arrays ('jztree info' lists the "
                    "installed kernels, and explains how to build those for CUDA); put the arrays on the CPU with "
                    "jax.device_put(part, jax.devices('cpu')[0]), or start with JAX_PLATFORMS=cpu.");
}

}  // namespace

// Not listed as a kernel.
JZTREE_DEFINE_SYMBOL(missing, missing, ffi::Ffi::Bind().RemainingArgs().RemainingRets());

}  // namespace jztree
