// Information about the library for Python, through ctypes.

#include <cuda_runtime.h>

#include "common/kernel.h"

extern "C" {

// The architectures with machine code in the library, named like in CUDAARCHS.
__attribute__((visibility("default"))) const char* jztree_cuda_architectures() { return JZTREE_CUDA_ARCHITECTURES; }

// The version of CUDA of the compiler: 1000 times the major version plus 10 times the minor one.
__attribute__((visibility("default"))) int jztree_cuda_version() { return CUDART_VERSION; }

// The newest version of CUDA that the driver of this machine supports, in the same format; 0 without a driver.
__attribute__((visibility("default"))) int jztree_cuda_driver_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

// The names of the kernels in this library, each followed by a comma.
__attribute__((visibility("default"))) const char* jztree_kernels() { return jztree::kernel_names(); }

}  // extern "C"
