#include "launch.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <utility>
#include <vector>

#include "block.h"

namespace emulator {
namespace {

// The blocks that one host thread runs.
class Blocks {
 public:
  Blocks() : random_(static_cast<unsigned>(seed())), places_(most_alive) {}

  void run(const Launch& launch) {
    unsigned alive = seed() > 0 ? 1 + random_() % most_alive : 1, next = 0;
    std::vector<Block*> running;
    while (next < launch.blocks || !running.empty()) {
      while (running.size() < alive && next < launch.blocks) {
        running.push_back(&unused());
        running.back()->begin(next++, launch, &random_);
      }
      if (seed() > 0) std::shuffle(running.begin(), running.end(), random_);
      auto ended = [](Block* block) { return !block->pass(); };
      running.erase(std::remove_if(running.begin(), running.end(), ended), running.end());
    }
  }

 private:
  static constexpr unsigned most_alive = 8;

  Block& unused() {
    return *std::find_if(places_.begin(), places_.end(), [](const Block& block) { return !block.is_alive(); });
  }

  std::mt19937 random_;
  std::vector<Block> places_;
};

}  // namespace

void run_blocks(const char* handler, unsigned blocks, unsigned threads, size_t shared_bytes,
                std::function<void()> body) {
  static std::atomic<uint32_t> launches{0};
  static thread_local Blocks all;
  all.run({++launches, handler, blocks, threads, shared_bytes, std::move(body)});
}

}  // namespace emulator
