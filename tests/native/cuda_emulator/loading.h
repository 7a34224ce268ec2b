// The kernels that have been loaded, and graphs that are being captured. CUDA loads a kernel when it is first used, and
// then waits for the GPU.
#pragma once

#include <mutex>
#include <unordered_set>
#include <vector>

namespace emulator {

class Loaded {
 public:
  static Loaded& all() {
    static Loaded one;
    return one;
  }
  void add(const void* kernel) {
    std::lock_guard<std::mutex> lock(mutex_);
    kernels_.insert(kernel);
  }
  bool has(const void* kernel) {
    std::lock_guard<std::mutex> lock(mutex_);
    return kernels_.count(kernel) > 0;
  }

 private:
  std::mutex mutex_;
  std::unordered_set<const void*> kernels_;
};

// A stream that captures work instead of running it, or its graph.
struct Capture {
  std::vector<const void*> kernels;

  // The stream that this thread captures.
  static Capture*& current() {
    static thread_local Capture* capture = nullptr;
    return capture;
  }
  template <typename Stream>
  static Capture* of(Stream stream) {
    return current() && reinterpret_cast<Capture*>(stream) == current() ? current() : nullptr;
  }
};

}  // namespace emulator
