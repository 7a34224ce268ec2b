#include "context.cuh"

namespace jztree {

void put_on_stream(WorkOnGpu work, void* stream, const Buffer& scratch, Arguments& arguments) {
  Queue queue(static_cast<cudaStream_t>(stream), scratch.data, scratch.bytes());
  work(queue, arguments);
  // XLA of JAX 0.10.0 and 0.10.1 fails if it records a call in a command buffer that puts nothing on the stream.
  if (queue.is_empty()) queue.fill_bytes(static_cast<char*>(scratch.data), 0, 1);
}

void load_kernels(WorkOnGpu work, const Buffer& scratch, Arguments& arguments) {
  Queue queue = Queue::that_loads(scratch.data, scratch.bytes());
  work(queue, arguments);
}

int current_gpu() {
  int device = 0;
  if (cudaGetDevice(&device) == cudaSuccess) return device;
  cudaGetLastError();  // forgets the error; otherwise, the next call of CUB would report it as its own
  return -1;
}

namespace {

// One thread copies one word of a target row. from, to: words per row.
__global__ void copy_words(const uint32_t* source, int64_t from, uint32_t* target, int64_t to, int64_t words) {
  const int64_t place = thread_index();
  if (place >= words) return;
  const int64_t row = place / to, word = place % to;
  target[place] = word < from ? source[row * from + word] : 0;
}

}  // namespace

void GpuRowPadder::copy_rows(const void* source, int64_t from, void* target, int64_t to, int64_t rows) {
  constexpr int64_t word = sizeof(uint32_t);
  queue_.launch_over(rows * to / word, copy_words, static_cast<const uint32_t*>(source), from / word,
                     static_cast<uint32_t*>(target), to / word, rows * to / word);
}

void continue_results(Queue& queue, const Arguments& arguments) {
  for (const auto& [old, result] : arguments.continued())
    if (old->data != result->data)
      queue.copy(static_cast<char*>(result->data), static_cast<const char*>(old->data), old->bytes());
}

}  // namespace jztree
