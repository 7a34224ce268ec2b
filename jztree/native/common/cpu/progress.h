// The progress of kernels that may run for minutes. Python reads it while they run.
#pragma once

#include <atomic>
#include <cstdint>

namespace jztree {

// The number of particles that such kernels have finished since the library was loaded.
inline std::atomic<int64_t>& particles_done() {
  static std::atomic<int64_t> done{0};
  return done;
}

}  // namespace jztree
