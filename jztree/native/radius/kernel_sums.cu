// Sums are taken on CPUs alone so far. Whoever asks for them on a GPU hears that, before any work.

#include "common/cuda/context.cuh"
#include "kernel_sums.h"

namespace jztree {
namespace {

template <int D, typename T>
void kernel_sums(Queue&, const KernelSums<D, T>&) {
  throw Refusal(
      "sums over kernels are taken on CPUs only, so far; put the particles there with jax.device_put(part, "
      "jax.devices('cpu')[0]), or start with JAX_PLATFORMS=cpu.");
}

}  // namespace

JZTREE_KERNEL(kernel_sums, KernelSums);

}  // namespace jztree
