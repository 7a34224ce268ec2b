// Copies values from the GPU to the host, for the kernels that raise: they have to wait for the GPU, because an error
// must be known before the handler returns. No other handler may use this.
#pragma once

#include <cstdint>
#include <vector>

#include "queue.cuh"

namespace jztree {

template <typename T>
std::vector<T> to_host(Queue& queue, const T* values, int64_t count) {
  std::vector<T> host(static_cast<size_t>(count));
  if (queue.measures()) return host;
  Queue::check(cudaMemcpyAsync(host.data(), values, host.size() * sizeof(T), cudaMemcpyDeviceToHost, queue.stream()));
  Queue::check(cudaStreamSynchronize(queue.stream()));
  return host;
}

}  // namespace jztree
