// Spherical overdensities have no kernel for the GPU yet; this says so, and what to do.

#include "queue.cuh"

namespace jztree {
namespace {

ffi::Error overdensity(ffi::RemainingArgs, ffi::RemainingRets) {
  return ffi::Error(ffi::ErrorCode::kUnimplemented,
                    "jztree: spherical overdensities are computed on the CPU only; put the particles and centres there "
                    "with jax.device_put(part, jax.devices('cpu')[0]), or call inside "
                    "'with jax.default_device(jax.devices(\"cpu\")[0]):' with NumPy arrays.");
}

}  // namespace

JZTREE_HANDLER(jztree_overdensity, overdensity);

}  // namespace jztree
