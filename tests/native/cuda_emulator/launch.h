// Runs the blocks of a launch. Without a seed (JZTREE_EMULATOR_SEED above 0), blocks run one after another. With a
// seed, up to 8 blocks are active at once, all threads run in an order drawn from the seed, and at atomic operations a
// thread may yield to others of its block or of other blocks, so each seed tries another interleaving.
#pragma once

#include <cstddef>
#include <functional>

namespace emulator {

// handler: the handler that launches the blocks. body: the work of each thread.
void run_blocks(const char* handler, unsigned blocks, unsigned threads, size_t shared_bytes,
                std::function<void()> body);

}  // namespace emulator
