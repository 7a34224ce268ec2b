// Loops on XLA's thread pool.
//
// The calling thread also works. It requests helpers while some threads are idle, and waits only for blocks that
// another thread has already begun. Several host devices share one pool, so a caller that waits for a queued task could
// wait for itself.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace xla::ffi {
class ThreadPool;
}

namespace jztree {

// An upper limit on the threads of one loop; 0 means no limit but the size of the pool.
inline std::atomic<int>& thread_limit() {
  static std::atomic<int> limit{0};
  return limit;
}

class Parallel {
 public:
  explicit Parallel(xla::ffi::ThreadPool& pool);
  ~Parallel();
  Parallel(const Parallel&) = delete;
  Parallel& operator=(const Parallel&) = delete;

  int threads() const { return threads_; }

  // Call work(begin, end) for consecutive blocks of at most `grain` items that together cover [0, items). Blocks run in
  // any order on any thread, so their results must not depend on it. The first exception is rethrown here.
  template <typename Work>
  void blocks(int64_t items, int64_t grain, const Work& work) const {
    run({&work,
         [](const void* object, int64_t begin, int64_t end) { (*static_cast<const Work*>(object))(begin, end); }},
        items, std::max<int64_t>(1, grain));
  }

 private:
  // Type-erased work, so that the following code is compiled only once.
  struct AnyWork {
    const void* object;
    void (*call)(const void*, int64_t, int64_t);
  };
  struct Shared;

  void run(AnyWork work, int64_t items, int64_t grain) const;

  xla::ffi::ThreadPool& pool_;
  const int pool_threads_;
  int threads_;
};

}  // namespace jztree
