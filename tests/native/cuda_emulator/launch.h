// The blocks of a launch. Without a seed (JZTREE_EMULATOR_SEED above 0), one runs after the other. With one, up to 8
// are alive at once, all threads run in an order drawn from it, and at atomic operations threads may hand over to
// others of their block and of other blocks, so that another seed tries another interleaving.
#pragma once

#include <cstddef>
#include <functional>

namespace emulator {

// handler: whose work this is. body: what each thread does.
void run_blocks(const char* handler, unsigned blocks, unsigned threads, size_t shared_bytes,
                std::function<void()> body);

}  // namespace emulator
