// The resources of kernels that the stand-in for CUDA's runtime knows, and the faults that it found.
#pragma once

#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace standin {

// The resources of a kernel in the machine code, and its state.
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
  int launches = 0, most_shared = 0;  // most_shared: of a block with permission

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

// The stream of the call that this thread runs.
inline Stream*& current() {
  static thread_local Stream* stream = nullptr;
  return stream;
}

}  // namespace standin
