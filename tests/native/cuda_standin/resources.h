// The resources of kernels that the stand-in for CUDA's runtime knows, and the faults that it found.
#pragma once

#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace standin {

constexpr int most_gpus = 128;  // the most that CUB supports

// The resources of a kernel in the machine code, and its state on the current GPU.
struct Kernel {
  std::string name;
  int registers = 0, shared = 0, parameters = 0;  // of a thread; bytes of a block; bytes
  int allowed = 0;                                // dynamic shared memory; 0: nothing was allowed
  bool loaded = false;
};

struct Kernels {
  static Kernels& all() {
    static Kernels one;
    return one;
  }

  std::mutex mutex;
  std::unordered_map<std::string, Kernel> by_name;
  std::unordered_map<const void*, Kernel*> by_stub;
  std::vector<std::string> wrong;
  int launches = 0, loads = 0, most_shared = 0;  // most_shared: of a block with permission
  int gpu = 0;                                   // the number of the current GPU

  void load(Kernel* kernel) {
    std::lock_guard<std::mutex> lock(mutex);
    kernel->loaded = true;
    ++loads;
  }
  void complain(const std::string& text) {
    std::lock_guard<std::mutex> lock(mutex);
    wrong.push_back(text);
  }
};

// A stream: that of the call, or one that the call created to capture work.
struct Stream {
  bool captures = false;
  std::vector<Kernel*> nodes;
  int other_nodes = 0;
};

// The number of calls of the runtime in this thread before one that fails; negative: none will.
inline int& calls_until_failure() {
  static thread_local int calls = -1;
  return calls;
}

// The stream of the call that this thread runs.
inline Stream*& current() {
  static thread_local Stream* stream = nullptr;
  return stream;
}

}  // namespace standin
