// What the threads of a loop work with.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "parallel.h"

namespace jztree {

// Work arrays, one set for each thread at work: a block of a loop uses some that are spare, or new ones. Making them
// for each block took a twentieth of the time of a search among few particles.
template <typename Object>
class Spares {
 public:
  // make: returns an object for those who find none; use: is called with one.
  template <typename Make, typename Use>
  void with(const Make& make, const Use& use) {
    std::unique_ptr<Object> object = take();
    if (!object) object.reset(new Object(make()));
    use(*object);
    std::lock_guard<std::mutex> lock(mutex_);
    spare_.push_back(std::move(object));
  }

  // A loop as Parallel::blocks has it: calls work(object, begin, end).
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
