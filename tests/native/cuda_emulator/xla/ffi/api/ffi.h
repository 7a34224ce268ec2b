// Wraps XLA's header: handlers defined with it are called with the functions of the emulated runtime (xla_runtime.h).
#pragma once

#include_next "xla/ffi/api/ffi.h"
#include "xla_runtime.h"

#undef XLA_FFI_DEFINE_HANDLER_SYMBOL
#define XLA_FFI_DEFINE_HANDLER_SYMBOL(fn, impl, ...)            \
  extern "C" XLA_FFI_Error* fn(XLA_FFI_CallFrame* call_frame) { \
    XLA_FFI_DEFINE_HANDLER(handler, impl, ##__VA_ARGS__);       \
    return emulator::as_on_a_gpu(#fn, *handler, call_frame);    \
  }                                                             \
  static_assert(true, "the macro ends without a semicolon")
