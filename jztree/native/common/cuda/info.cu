// What Python asks the library itself, through ctypes.

#include <cuda_runtime.h>

#include "common/kernel.h"

extern "C" {

// The architectures that it holds machine code for, as CUDAARCHS names them.
__attribute__((visibility("default"))) const char* jztree_cuda_architectures() { return JZTREE_CUDA_ARCHITECTURES; }

// The version of CUDA that it was compiled with: 1000 times the major one plus 10 times the minor one.
__attribute__((visibility("default"))) int jztree_cuda_version() { return CUDART_VERSION; }

// The newest version of CUDA that the driver of this machine can run, as that; 0 where there is no driver.
__attribute__((visibility("default"))) int jztree_cuda_driver_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

// The names of the kernels in this library, a comma after each.
__attribute__((visibility("default"))) const char* jztree_kernels() { return jztree::kernel_names(); }

}  // extern "C"
