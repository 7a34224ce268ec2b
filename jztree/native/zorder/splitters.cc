#include "splitters.h"

#include <cstdint>

#include "common/cpu/context.h"

namespace jztree {
namespace {

template <int D, typename T>
struct SortedRows {
  const T* pos;
  KeyGrid<D> grid;

  // The first row in [first, last) that is not before the splitter (above: is above it); last if there is none.
  int64_t find(int64_t first, int64_t last, const Splitter<D>& splitter, bool above) const {
    while (first < last) {
      int64_t middle = (first + last) / 2;
      bool before = OrderWords<D>::before(grid, pos + middle * D, splitter.words, above);
      (before ? first : last) = before ? middle + 1 : middle;
    }
    return first;
  }
};

template <int D, typename T>
void key_counts(const Parallel& parallel, const KeyCounts<D, T>& in) {
  SortedRows<D, T> rows{in.pos, in.keys.grid()};
  int64_t count = in.num();
  int byte = *in.place;
  if (byte < 0 || byte >= Splitter<D>::bytes)
    throw Refusal("splitters have no byte " + std::to_string(byte) + " in " + std::to_string(D) + " dimensions.");
  parallel.blocks(in.number(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      Splitter<D> splitter(in.splitters + s * Splitter<D>::halves);
      int32_t* out = in.counts + s * byte_values;
      int64_t first = 0;
      for (uint64_t b = 0; b < byte_values; ++b) {
        // Most bytes have no rows at all, and then the next row is the answer again.
        Splitter<D> bound = splitter.with_byte(byte, b);
        if (first < count && rows.find(first, first + 1, bound, false) > first)
          first = rows.find(first + 1, count, bound, false);
        out[b] = static_cast<int32_t>(first);
      }
    }
  });
}

template <int D, typename T>
void key_positions(const Parallel& parallel, const KeyPositions<D, T>& in) {
  SortedRows<D, T> rows{in.pos, in.keys.grid()};
  int64_t count = in.num();
  parallel.blocks(in.number(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      Splitter<D> splitter(in.splitters + s * Splitter<D>::halves);
      int64_t first = rows.find(0, count, splitter, false);
      in.below[s] = static_cast<int32_t>(first);
      in.equal[s] = static_cast<int32_t>(rows.find(first, count, splitter, true) - first);
    }
  });
}

}  // namespace

JZTREE_KERNEL(key_counts, KeyCounts);
JZTREE_KERNEL(key_positions, KeyPositions);

}  // namespace jztree
