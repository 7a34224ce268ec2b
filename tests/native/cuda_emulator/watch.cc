#include "watch.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "block.h"
#include "counts.h"

namespace emulator {
namespace {

// One access, of up to four bytes at a multiple of four.
struct Access {
  uint32_t launch, block, now;
  uint32_t place;  // in the library's code
  uint16_t thread;
  uint8_t bytes;  // one bit per byte
  bool writes : 1, strong : 1;

  bool conflicts(const Access& other) const {
    return (bytes & other.bytes) != 0 && (writes || other.writes) && !(strong && other.strong);
  }
  // Whether every access that conflicts with the earlier access `before` also conflicts with this one.
  bool covers(const Access& before) const {
    return (before.bytes & ~bytes) == 0 && writes >= before.writes && strong <= before.strong;
  }
};

// The remembered accesses to a word of four bytes.
struct Word {
  static constexpr int most = 4;
  Access accesses[most];
};

constexpr size_t word_bytes = 4, unit_bytes = 8;

struct Tables {
  uintptr_t begin;
  size_t global, all;
  Word* words;          // of the device's memory
  unsigned char* open;  // number of accessible bytes in each unit of 8
  uintptr_t code;       // address of the library
  const char* library;
};

const Tables tables = [] {
  Watched::Range global = Watched::global_memory(), shared = Watched::shared_memory();
  size_t all = global.bytes + shared.bytes;
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&Watched::atomic), &info);
  return Tables{reinterpret_cast<uintptr_t>(global.begin),
                global.bytes,
                all,
                reinterpret_cast<Word*>(reserve(all / word_bytes * sizeof(Word))),
                reserve(all / unit_bytes),
                reinterpret_cast<uintptr_t>(info.dli_fbase),
                info.dli_fname};
}();

bool look_for_races = setting("JZTREE_EMULATOR_RACES", 1) != 0, count_sectors = false;

void show_line(const char* who, uint32_t place) {
  char address[32];
  std::snprintf(address, sizeof(address), "0x%x", place - 1);  // inside the call instruction, not after it
  std::string command = std::string("addr2line -p -i -C -e '") + tables.library + "' " + address + " >&2";
  std::fprintf(stderr, "%s:\n", who);
  if (std::system(command.c_str()) != 0) std::fprintf(stderr, "  %s of %s\n", address, tables.library);
}

std::string words_of(const Access& access) {
  return "thread " + std::to_string(access.thread) + " of block " + std::to_string(access.block) +
         (access.writes ? " writes" : " reads") + (access.strong ? " by an atomic or volatile access" : "");
}

[[noreturn]] void fail_race(const Access& first, const Access& second) {
  show_line(words_of(first).c_str(), first.place);
  show_line(words_of(second).c_str(), second.place);
  fail("two threads access the same memory, one writes, and nothing orders the accesses.");
}

// Whether an old access is ordered before the current access of the thread.
bool is_before(const Access& old, const Access& now, Fiber& me, bool shared) {
  if (old.launch != now.launch) return true;
  if (old.block != now.block) return shared;  // by a block that used the memory earlier
  if (old.thread == now.thread) return true;
  if (old.now <= me.block->thread(old.thread).at_barrier) return true;
  return old.thread / warp_lanes == now.thread / warp_lanes && old.now <= me.known[old.thread % warp_lanes];
}

// Decides which unordered access to forget: preferably one similar to the new access, from a nearby thread.
int distance(const Access& old, const Access& now) {
  int far = old.block != now.block ? 2 : old.thread / warp_lanes != now.thread / warp_lanes ? 1 : 0;
  return far + (old.writes && !now.writes ? 8 : 0) + (!old.strong && now.strong ? 4 : 0);
}

void remember(Word& word, const Access& now, Fiber& me, bool shared) {
  int at = 0, least = 100;
  for (int i = 0; i < Word::most; ++i) {
    const Access& old = word.accesses[i];
    int worth = -1;
    if (old.launch == now.launch && (!shared || old.block == now.block)) {
      bool before = is_before(old, now, me, shared);
      if (!before && now.conflicts(old)) fail_race(old, now);
      if (!before || !now.covers(old)) worth = before ? 0 : 1 + distance(old, now);
    }
    if (worth < least) at = i, least = worth;
  }
  word.accesses[at] = now;
}

// Whether the whole range is accessible.
bool is_open(size_t offset, size_t bytes) {
  for (size_t end = offset + bytes; offset < end;) {
    size_t within = offset % unit_bytes, part = std::min(unit_bytes - within, end - offset);
    if (within + part > tables.open[offset / unit_bytes]) return false;
    offset += part;
  }
  return true;
}

void look(uintptr_t at, size_t bytes, bool writes, bool strong, uintptr_t code) {
  size_t offset = at - tables.begin;
  if (offset >= tables.all || bytes == 0) return;
  Fiber* me = Stacks::current();
  if (!me) return;
  auto place = static_cast<uint32_t>(code - tables.code);
  bool shared = offset >= tables.global;
  if (!is_open(offset, bytes)) {
    show_line(writes ? "a thread writes" : "a thread reads", place);
    fail("a kernel accesses memory outside its arrays.");
  }
  Block& block = *me->block;
  if (count_sectors && !shared) block.counts().ask(me->thread, {code, offset, bytes, writes});
  if (!look_for_races) return;
  Access access{
      block.launch().number, block.index(), me->now, place, static_cast<uint16_t>(me->thread), 0, writes, strong};
  for (size_t end = offset + bytes; offset < end;) {
    size_t within = offset % word_bytes, part = std::min(word_bytes - within, end - offset);
    access.bytes = static_cast<uint8_t>(((1u << part) - 1) << within);
    remember(tables.words[offset / word_bytes], access, *me, shared);
    offset += part;
  }
}

}  // namespace

void Watched::open(unsigned char* at, size_t bytes) {
  size_t first = (reinterpret_cast<uintptr_t>(at) - tables.begin) / unit_bytes;
  std::memset(tables.open + first, unit_bytes, bytes / unit_bytes);
  if (bytes % unit_bytes != 0) tables.open[first + bytes / unit_bytes] = static_cast<unsigned char>(bytes % unit_bytes);
}

void Watched::close(unsigned char* at, size_t bytes) {
  size_t first = (reinterpret_cast<uintptr_t>(at) - tables.begin) / unit_bytes;
  std::memset(tables.open + first, 0, (bytes + unit_bytes - 1) / unit_bytes);
}

__attribute__((noinline)) void Watched::atomic(void* at, size_t bytes) {
  look(reinterpret_cast<uintptr_t>(at), bytes, true, true, reinterpret_cast<uintptr_t>(__builtin_return_address(0)));
}

void Watched::transfer(const char* handler, size_t read, size_t written) {
  if (count_sectors) add_sectors(handler, read, written);
}

}  // namespace emulator

// Sets the checks for all later accesses.
extern "C" __attribute__((visibility("default"))) void jztree_emulator_watch(int races, int sectors) {
  emulator::look_for_races = races != 0;
  emulator::count_sectors = sectors != 0;
}

// Functions that the instrumentation calls.

#define JZTREE_CODE reinterpret_cast<uintptr_t>(__builtin_return_address(0))
#define JZTREE_ADDRESS reinterpret_cast<uintptr_t>(at)
#define JZTREE_WATCH(bytes)                                                                                         \
  void __tsan_read##bytes(void* at) { emulator::look(JZTREE_ADDRESS, bytes, false, false, JZTREE_CODE); }           \
  void __tsan_write##bytes(void* at) { emulator::look(JZTREE_ADDRESS, bytes, true, false, JZTREE_CODE); }           \
  void __tsan_unaligned_read##bytes(void* at) { emulator::look(JZTREE_ADDRESS, bytes, false, false, JZTREE_CODE); } \
  void __tsan_unaligned_write##bytes(void* at) { emulator::look(JZTREE_ADDRESS, bytes, true, false, JZTREE_CODE); } \
  void __tsan_volatile_read##bytes(void* at) {                                                                      \
    if (emulator::Stacks::current()) emulator::Block::current().may_interleave();                                   \
    emulator::look(JZTREE_ADDRESS, bytes, false, true, JZTREE_CODE);                                                \
  }                                                                                                                 \
  void __tsan_volatile_write##bytes(void* at) {                                                                     \
    if (emulator::Stacks::current()) emulator::Block::current().may_interleave();                                   \
    emulator::look(JZTREE_ADDRESS, bytes, true, true, JZTREE_CODE);                                                 \
  }                                                                                                                 \
  static_assert(true, "the macro ends without a semicolon")

extern "C" {
JZTREE_WATCH(1);
JZTREE_WATCH(2);
JZTREE_WATCH(4);
JZTREE_WATCH(8);
JZTREE_WATCH(16);
void __tsan_read_range(void* at, size_t bytes) { emulator::look(JZTREE_ADDRESS, bytes, false, false, JZTREE_CODE); }
void __tsan_write_range(void* at, size_t bytes) { emulator::look(JZTREE_ADDRESS, bytes, true, false, JZTREE_CODE); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_init() {}
// For the host's own code: reference counters, and guards of static variables in functions.
uint8_t __tsan_atomic8_load(const uint8_t* at, int) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
void __tsan_atomic32_store(uint32_t* at, uint32_t value, int) { __atomic_store_n(at, value, __ATOMIC_SEQ_CST); }
uint32_t __tsan_atomic32_fetch_add(uint32_t* at, uint32_t by, int) {
  return __atomic_fetch_add(at, by, __ATOMIC_SEQ_CST);
}
uint64_t __tsan_atomic64_fetch_add(uint64_t* at, uint64_t by, int) {
  return __atomic_fetch_add(at, by, __ATOMIC_SEQ_CST);
}
uint64_t __tsan_atomic64_exchange(uint64_t* at, uint64_t value, int) {
  return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);
}
}
