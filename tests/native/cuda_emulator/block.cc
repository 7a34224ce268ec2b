#include "block.h"

#include <algorithm>
#include <cstring>

namespace emulator {

void Block::begin(unsigned index, const Launch& launch, std::mt19937* random) {
  int threads = static_cast<int>(launch.threads);
  index_ = index;
  launch_ = &launch;
  random_ = random;
  shared_.begin(launch.shared_bytes);
  while (fibers_.size() < static_cast<size_t>(threads)) fibers_.push_back(Stacks::take());
  order_.resize(static_cast<size_t>(threads));
  counts_.begin(threads, launch.handler);
  for (int i = 0; i < threads; ++i) {
    order_[static_cast<size_t>(i)] = i;
    Fiber& fiber = *fibers_[static_cast<size_t>(i)];
    fiber.block = this;
    fiber.thread = i;
    fiber.wait = Wait::ready;
    fiber.now = 1;
    fiber.at_barrier = 0;
    std::fill(fiber.known, fiber.known + warp_lanes, 0);
    fiber.stack_pointer = Stacks::ready(&fiber, &Block::start);
  }
  live_ = threads;
}

bool Block::pass() {
  bool moved = false;
  if (seed() > 0) std::shuffle(order_.begin(), order_.end(), *random_);
  for (int i : order_) {
    Fiber& fiber = *fibers_[static_cast<size_t>(i)];
    if (fiber.wait != Wait::ready) continue;
    moved = true;
    jztree_switch_fiber(&host_, fiber.stack_pointer);
  }
  moved |= release_block();
  if (!moved && live_ > 0) fail("threads wait at a barrier that other threads never reach.");
  if (live_ == 0) end();
  return live_ > 0;
}

void Block::sync_block() { hand_over(Wait::block); }

Fiber& Block::meet(uint32_t mask, Operation operation) {
  Fiber& me = *Stacks::current();
  if (!(mask >> me.lane() & 1)) fail("a lane takes part in an operation, but the mask does not contain the lane.");
  me.mask = mask;
  me.operation = operation;
  me.wait = Wait::warp;
  if (all_here(me)) {
    serve(me);
  } else {
    switch_out(me);
  }
  return me;
}

void Block::may_interleave() {
  if (seed() > 0 && (*random_)() % 8 == 0) hand_over(Wait::ready);
}

void Block::start() {
  Block& block = current();
  block.launch_->body();
  Fiber& me = *Stacks::current();
  me.wait = Wait::done;
  --block.live_;
  block.switch_out(me);
  fail("a thread that had ended ran again.");
}

void Block::end() {
  counts_.end();
  shared_.end();
}

void Block::hand_over(Wait wait) {
  Fiber& me = *Stacks::current();
  me.wait = wait;
  switch_out(me);
}

void Block::switch_out(Fiber& me) { jztree_switch_fiber(&me.stack_pointer, host_); }

bool Block::release_block() {
  bool any = false;
  for (size_t i = 0; i < order_.size(); ++i)
    if (fibers_[i]->wait == Wait::ready || fibers_[i]->wait == Wait::warp) return false;
  for (size_t i = 0; i < order_.size(); ++i)
    if (fibers_[i]->wait == Wait::block) {
      fibers_[i]->wait = Wait::ready;
      fibers_[i]->at_barrier = fibers_[i]->now++;
      any = true;
    }
  return any;
}

Fiber* Block::lane_beside(const Fiber& me, int lane) {
  size_t i = static_cast<size_t>(me.thread - me.lane() + lane);
  return i < order_.size() ? fibers_[i] : nullptr;
}

bool Block::all_here(const Fiber& last) {
  for (int i = 0; i < warp_lanes; ++i) {
    if (!(last.mask >> i & 1)) continue;
    Fiber* other = lane_beside(last, i);
    if (!other || other->wait == Wait::done) fail("a mask contains a lane that does not exist or has left the kernel.");
    if (other->wait != Wait::warp) return false;
    if (other->mask != last.mask || other->operation != last.operation)
      fail("lanes of one mask reached different operations.");
  }
  return true;
}

void Block::serve(const Fiber& last) {
  uint32_t ballot = 0;
  for (int i = 0; i < warp_lanes; ++i)
    if ((last.mask >> i & 1) && lane_beside(last, i)->predicate) ballot |= 1u << i;
  for (int i = 0; i < warp_lanes; ++i) {
    if (!(last.mask >> i & 1)) continue;
    Fiber& fiber = *lane_beside(last, i);
    fiber.ballot = ballot;
    if (fiber.operation == Operation::shuffle) {
      int source = fiber.source < 0 ? i : fiber.source;
      if (!(last.mask >> source & 1)) fail("a lane reads the value of a lane that is not in the mask.");
      std::memcpy(fiber.result, lane_beside(last, source)->value, sizeof(fiber.result));
    }
    fiber.wait = Wait::ready;
  }
  if (last.operation == Operation::sync) tell_each_other(last);
  if (last.mask == 0xffffffffu) counts_.together(last.thread / warp_lanes);
}

// According to CUDA's manual, __syncwarp orders memory accesses, but shuffles and votes do not.
void Block::tell_each_other(const Fiber& last) {
  uint32_t known[warp_lanes] = {};
  for (int i = 0; i < warp_lanes; ++i) {
    if (!(last.mask >> i & 1)) continue;
    Fiber& fiber = *lane_beside(last, i);
    for (int j = 0; j < warp_lanes; ++j) known[j] = std::max(known[j], fiber.known[j]);
    known[i] = std::max(known[i], fiber.now++);
  }
  for (int i = 0; i < warp_lanes; ++i)
    if (last.mask >> i & 1) std::copy(known, known + warp_lanes, lane_beside(last, i)->known);
}

}  // namespace emulator
