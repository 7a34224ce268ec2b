// Deliberate errors in the sanitized library: `make fuzz-sanitized` first tests that the sanitizers detect them.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

extern "C" __attribute__((visibility("default"))) int32_t jztree_planted_overrun(int32_t rows) {
  std::vector<int32_t> counts(static_cast<size_t>(rows), 1);
  return *(counts.data() + rows);
}

extern "C" __attribute__((visibility("default"))) int32_t jztree_planted_overflow(int32_t rows) {
  return std::numeric_limits<int32_t>::max() + rows;
}
