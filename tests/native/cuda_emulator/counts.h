// How often warps come to the places that kernels mark with JZTREE_COUNT, and how many sectors of 32 bytes they ask of
// global memory.
//
// Lanes of a warp that come to a place together cost one instruction each time. Nearly all of the marked places are
// those that all lanes come to together, or some of them, once; so a place counts as often as the lane that came to it
// most often.
//
// Sectors are those of an instruction of a warp: what lanes read at one place of the code counts once where they read
// it from the same sector. All lanes of the warp meet between; what each asked for there the first time since they
// met last is one instruction, what it asked for the second time another one, and so on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace emulator {

class Counts {
 public:
  // All that ran since the library was loaded or `reset` was called.
  static Counts& all();

  // The number of a part, by its name.
  int part(const std::string& name);
  void add(const std::vector<int64_t>& counts);
  void add(const std::string& name, int64_t count);
  // "name=count" for each part, one a line.
  std::string text();
  void reset();

 private:
  std::mutex mutex_;
  std::map<std::string, int> numbers_;
  std::vector<int64_t> totals_;
};

// Of the lanes of one block at work.
class LaneCounts {
 public:
  // An access of a lane to global memory, by the place in the code that makes it.
  struct Ask {
    uintptr_t code;
    size_t at, bytes;
    bool writes;
  };

  // handler: whose work this is.
  void begin(int threads, const char* handler);
  void come(int thread, int part);
  void ask(int thread, const Ask& ask) { lanes_[static_cast<size_t>(thread)].asks.push_back(ask); }
  // All lanes of a warp have met.
  void together(int warp);
  void end();

 private:
  struct Lane {
    std::vector<int64_t> times;
    std::vector<Ask> asks;
  };
  std::vector<Lane> lanes_;
  const char* handler_ = "";
};

// Bytes of global memory that the work of a handler reads and writes in one piece.
void add_sectors(const char* handler, size_t bytes_read, size_t bytes_written);

}  // namespace emulator
