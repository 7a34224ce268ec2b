// Work arrays for the threads of a loop.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "parallel.h"

namespace jztree {

// Keeps one set of work arrays for each active thread: a block of a loop uses a spare set, or a new one. Making a set
// for each block took a twentieth of the time of a search among few particles.
template <typename Object>
class Spares {
 public:
  // make: returns a new object, and is called if no spare object exists. use: is called with the object.
  template <typename Make, typename Use>
  void with(const Make& make, const Use& use) {
    std::unique_ptr<Object> object = take();
    if (!object) object.reset(new Object(make()));
    use(*object);
    std::lock_guard<std::mutex> lock(mutex_);
    spare_.push_back(std::move(object));
  }

  // A loop like Parallel::blocks: calls work(object, begin, end).
  template <typename Make, typename Work>
  void blocks(const Parallel& parallel, int64_t items, int64_t grain, const Make& make, const Work& work) {
    parallel.blocks(items, grain,
                    [&](int64_t begin, int64_t end) { with(make, [&](Object& object) { work(object, begin, end); }); });
  }

 private:
  std::unique_ptr<Object> take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (spare_.empty()) return nullptr;
    std::unique_ptr<Object> object = std::move(spare_.back());
    spare_.pop_back();
    return object;
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Object>> spare_;
};

}  // namespace jztree
