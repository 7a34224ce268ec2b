// Loads kernels that only a library can launch.
#pragma once

#include <cuda_runtime.h>

#include "queue.cuh"

namespace jztree {

// A stream that records work in a graph and does not run it. Capture in the relaxed mode allows the calls that CUDA
// needs to load a kernel. It concerns only this stream: other threads may work on the GPU, or capture, at the same
// time.
class CapturingStream {
 public:
  CapturingStream() {
    Queue::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    if (cudaError_t error = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed)) {
      cudaStreamDestroy(stream_);
      Queue::check(error);
    }
  }
  CapturingStream(const CapturingStream&) = delete;
  CapturingStream& operator=(const CapturingStream&) = delete;
  ~CapturingStream() {
    if (!graph_) cudaStreamEndCapture(stream_, &graph_);
    if (graph_) cudaGraphDestroy(graph_);
    cudaStreamDestroy(stream_);
    cudaGetLastError();
  }

  cudaStream_t get() const { return stream_; }

  // End the capture and load the kernels of the graph. XLA also creates the executable form of its command buffers
  // before any rank starts to run a program.
  void load() {
    Queue::check(cudaStreamEndCapture(stream_, &graph_));
    cudaGraphExec_t executable = nullptr;
    Queue::check(cudaGraphInstantiate(&executable, graph_, 0));
    Queue::check(cudaGraphExecDestroy(executable));
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
};

// Load the kernels that `put_on(stream)` puts on a stream, without running them.
template <typename PutOn>
void load_captured(const PutOn& put_on) {
  CapturingStream stream;
  put_on(stream.get());
  stream.load();
}

}  // namespace jztree
