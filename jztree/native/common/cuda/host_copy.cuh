// Copies values from the GPU to the host. Only for kernels that raise errors: the handler must return the error, so it
// has to wait for the GPU. No other handler may use this.
#pragma once

#include <cstdint>
#include <vector>

#include "queue.cuh"

namespace jztree {

template <typename T>
std::vector<T> to_host(Queue& queue, const T* values, int64_t count) {
  std::vector<T> host(static_cast<size_t>(count));
  if (queue.measures() || queue.loads()) return host;
  Queue::check(cudaMemcpyAsync(host.data(), values, host.size() * sizeof(T), cudaMemcpyDeviceToHost, queue.stream()));
  Queue::check(cudaStreamSynchronize(queue.stream()));
  return host;
}

}  // namespace jztree
