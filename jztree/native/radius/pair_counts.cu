// Pairs are counted on CPUs alone so far. Whoever asks for them on a GPU hears that, before any work.

#include "common/cuda/context.cuh"
#include "pair_counts.h"

namespace jztree {
namespace {

template <int D, typename T>
void pair_counts(Queue&, const PairCounts<D, T>&) {
  throw Refusal(
      "pairs are counted on CPUs only, so far; put the particles there with jax.device_put(part, "
      "jax.devices('cpu')[0]), or start with JAX_PLATFORMS=cpu.");
}

}  // namespace

JZTREE_KERNEL(pair_counts, PairCounts);

}  // namespace jztree
