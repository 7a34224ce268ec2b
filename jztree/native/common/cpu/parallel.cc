#include "parallel.h"

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>

#include "subnormals.h"
#include "xla/ffi/api/ffi.h"

namespace jztree {

namespace {

// The number of threads of this process that run a kernel, or are about to. It counts the threads of every host device,
// because devices share the cores.
std::atomic<int> at_work{0};

// Add one thread if there are fewer than `capacity`.
bool add_if_below(std::atomic<int>& threads, int64_t capacity) {
  int now = threads.load(std::memory_order_relaxed);
  while (now < capacity)
    if (threads.compare_exchange_weak(now, now + 1, std::memory_order_relaxed)) return true;
  return false;
}

void remove_from(std::atomic<int>& threads) { threads.fetch_sub(1, std::memory_order_relaxed); }

}  // namespace

// The last scheduled task may read this object after the loop has ended, so the tasks share its ownership. Only threads
// with a block use `parallel` and `work`, and the caller waits for those threads.
struct Parallel::Shared : std::enable_shared_from_this<Shared> {
  Shared(const Parallel& p, AnyWork w, int64_t n, int64_t g, int64_t c)
      : parallel(p), work(w), items(n), grain(g), count(c) {}

  void run() {
    for (;;) {
      int64_t block = next.fetch_add(1, std::memory_order_relaxed);
      if (block >= count) return;
      request_helpers(count - block - 1);
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

  // Every thread with a block requests two helpers, because one that wakes all of many threads takes a microsecond or
  // more for each. waiting_blocks: the number of blocks not yet begun.
  void request_helpers(int64_t waiting_blocks) {
    for (int i = 0; i < 2 && add_if_below(helpers, std::min<int64_t>(parallel.threads_ - 1, waiting_blocks)); ++i) {
      // More threads than the pool has would compete for cores, and the threads of other devices are also busy.
      if (!add_if_below(at_work, parallel.pool_threads_)) return remove_from(helpers);
      parallel.pool_.Schedule([loop = shared_from_this()] {
        KeepSubnormals kept;
        loop->run();
        remove_from(at_work);
      });
    }
  }

  void wait() {
    for (int i = 0; i < patience && done.load(std::memory_order_acquire) != count; ++i) pause();
    std::unique_lock<std::mutex> lock(mutex);
    finished.wait(lock, [this] { return done.load(std::memory_order_acquire) == count; });
    if (error) std::rethrow_exception(error);
  }

  // Blocks end at about the same time. To sleep would take longer than to wait actively for a block that is about to
  // end: about 20 microseconds.
  static constexpr int patience = 2000;

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  const Parallel& parallel;
  const AnyWork work;
  const int64_t items, grain, count;
  std::atomic<int64_t> next{0}, done{0};
  std::atomic<int> helpers{0};
  std::mutex mutex;
  std::condition_variable finished;
  std::exception_ptr error;
};

Parallel::Parallel(xla::ffi::ThreadPool& pool)
    : pool_(pool), pool_threads_(static_cast<int>(std::max<int64_t>(1, pool.num_threads()))) {
  int limit = thread_limit().load(std::memory_order_relaxed);
  threads_ = limit > 0 ? std::min(limit, pool_threads_) : pool_threads_;
  at_work.fetch_add(1, std::memory_order_relaxed);
}

Parallel::~Parallel() { remove_from(at_work); }

void Parallel::run(AnyWork work, int64_t items, int64_t grain) const {
  if (items <= 0) return;
  int64_t count = (items + grain - 1) / grain;
  if (threads_ == 1 || count == 1) return work.call(work.object, 0, items);
  auto loop = std::make_shared<Shared>(*this, work, items, grain, count);
  loop->run();
  loop->wait();
}

}  // namespace jztree
