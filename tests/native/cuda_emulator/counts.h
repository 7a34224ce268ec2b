// Counts how often warps reach the places that kernels mark with JZTREE_COUNT, and how many 32-byte sectors of global
// memory they access.
//
// If several lanes of a warp reach a place together, this costs one instruction. At nearly all marked places, lanes
// arrive together. So the count of a place is the largest count of any lane.
//
// Sectors are counted per instruction of a warp: if one instruction accesses a sector in several lanes, the sector
// counts once. The emulator runs lanes one after the other, so it has to assign their accesses to instructions. Between
// two meetings of a warp, it treats the first access of each lane from a place in the code as one instruction, the
// second accesses as the next one, and so on.
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
  // The counts since the library was loaded or `reset` was called.
  static Counts& all();

  // The index of the part with this name.
  int part(const std::string& name);
  void add(const std::vector<int64_t>& counts);
  void add(const std::string& name, int64_t count);
  // "name=count" for each part, one per line.
  std::string text();
  void reset();

 private:
  std::mutex mutex_;
  std::map<std::string, int> numbers_;
  std::vector<int64_t> totals_;
};

// The counts of the lanes of a running block.
class LaneCounts {
 public:
  // An access of a lane to global memory. code: the address of the instruction.
  struct Ask {
    uintptr_t code;
    size_t at, bytes;
    bool writes;
  };

  // handler: the handler that launched the block.
  void begin(int threads, const char* handler);
  void come(int thread, int part);
  void ask(int thread, const Ask& ask) { lanes_[static_cast<size_t>(thread)].asks.push_back(ask); }
  // Called when all lanes of a warp have met.
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

// Adds contiguous bytes of global memory that the work of a handler reads and writes.
void add_sectors(const char* handler, size_t bytes_read, size_t bytes_written);

}  // namespace emulator
