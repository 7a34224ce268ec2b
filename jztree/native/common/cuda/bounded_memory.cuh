// Work memory for algorithms of CUB.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "capture.cuh"
#include "queue.cuh"

namespace jztree {

// Run an algorithm of CUB, run(work, bytes, stream), in `most` bytes of work memory. CUB can compute the number of
// bytes that it needs, but only on a machine with a GPU. Tracing must not need a GPU, so `most` is an upper limit that
// the caller computes. If it is too small, this raises an error and writes nothing.
template <typename Algorithm>
void in_bounded_memory(Queue& queue, int64_t most, const Algorithm& run) {
  auto* work = queue.scratch<unsigned char>(most);
  auto put_on = [&](cudaStream_t stream) {
    size_t bytes = 0;
    Queue::check(run(nullptr, bytes, stream));
    if (bytes > static_cast<size_t>(most))
      throw std::runtime_error("CUB needs " + std::to_string(bytes) + " bytes of work memory, more than the " +
                               std::to_string(most) +
                               " bytes that jztree reserves; please report this with the "
                               "version of CUDA, the GPU and the number of particles.");
    Queue::check(run(work, bytes, stream));
  };
  if (queue.measures()) return;
  if (queue.loads()) return load_captured(put_on);
  put_on(queue.stream());
}

}  // namespace jztree
