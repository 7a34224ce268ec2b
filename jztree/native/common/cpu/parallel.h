// Loops on XLA's own thread pool.
//
// The calling thread works too, and waits only for blocks that another thread has already begun: several host devices
// share one pool, and a caller that waited for a task still in the queue could wait for itself.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>

#include "subnormals.h"
#include "xla/ffi/api/ffi.h"

namespace jztree {

// An upper limit on the threads of one loop; 0 means as many as the pool has.
inline std::atomic<int>& thread_limit() {
  static std::atomic<int> limit{0};
  return limit;
}

class Parallel {
 public:
  explicit Parallel(xla::ffi::ThreadPool& pool) : pool_(pool) {
    int64_t threads = std::max<int64_t>(1, pool.num_threads());
    int64_t limit = thread_limit().load(std::memory_order_relaxed);
    threads_ = static_cast<int>(limit > 0 ? std::min(limit, threads) : threads);
  }

  int threads() const { return threads_; }

  // Calls work(begin, end) for consecutive blocks of at most `grain` items that together cover [0, items). Blocks run
  // in any order on any thread, so what they write must not depend on it. The first exception is thrown again here.
  template <typename Work>
  void blocks(int64_t items, int64_t grain, const Work& work) const {
    run({&work,
         [](const void* object, int64_t begin, int64_t end) { (*static_cast<const Work*>(object))(begin, end); }},
        items, std::max<int64_t>(1, grain));
  }

 private:
  // Work of any type, so that all that follows is compiled once.
  struct AnyWork {
    const void* object;
    void (*call)(const void*, int64_t, int64_t);
  };

  void run(AnyWork work, int64_t items, int64_t grain) const {
    if (items <= 0) return;
    int64_t count = (items + grain - 1) / grain;
    int helpers = static_cast<int>(std::min<int64_t>(threads_, count)) - 1;
    if (helpers <= 0) return work.call(work.object, 0, items);
    auto shared = std::make_shared<Shared>(work, items, grain, count);
    for (int i = 0; i < helpers; ++i)
      pool_.Schedule([shared] {
        KeepSubnormals kept;
        shared->run();
      });
    shared->run();
    shared->wait();
  }

  // Lives until the last scheduled task has looked at it, which may be after the loop is over; `work` is touched only
  // by threads that hold a block, and the caller waits for those.
  struct Shared {
    Shared(AnyWork w, int64_t n, int64_t g, int64_t c) : work(w), items(n), grain(g), count(c) {}

    void run() {
      for (;;) {
        int64_t block = next.fetch_add(1, std::memory_order_relaxed);
        if (block >= count) return;
        try {
          work.call(work.object, block * grain, std::min(items, (block + 1) * grain));
        } catch (...) {
          std::lock_guard<std::mutex> lock(mutex);
          if (!error) error = std::current_exception();
        }
        if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
          std::lock_guard<std::mutex> lock(mutex);
          finished.notify_all();
        }
      }
    }

    void wait() {
      std::unique_lock<std::mutex> lock(mutex);
      finished.wait(lock, [this] { return done.load(std::memory_order_acquire) == count; });
      if (error) std::rethrow_exception(error);
    }

    const AnyWork work;
    const int64_t items, grain, count;
    std::atomic<int64_t> next{0}, done{0};
    std::mutex mutex;
    std::condition_variable finished;
    std::exception_ptr error;
  };

  xla::ffi::ThreadPool& pool_;
  int threads_;
};

}  // namespace jztree
