#include "splitters.h"

#include <algorithm>
#include <cstdint>

#include "common/cpu/context.h"

namespace jztree {
namespace {

// Rows of a cell, by the word that distinguishes its parts.
template <int D, typename T>
struct CellRows {
  const T* pos;
  KeyGrid<D> grid;
  int word;

  uint64_t at(int64_t row) const { return OrderWords<D>::at(grid, pos + row * grid.dims, word); }

  // The first row after `row` that is not before the bound, or `last` if all are. `row` must be before the bound. The
  // search doubles its steps, because most parts have few rows.
  int64_t behind(int64_t row, int64_t last, uint64_t bound) const {
    int64_t width = 1;
    for (; row + width < last && at(row + width) < bound; width *= 2) row += width;
    return partition_point(row + 1, std::min(last, row + width), [&](int64_t next) { return at(next) < bound; });
  }
};

// Count the rows in parts [begin, end) of a cell whose part 0 begins at `low`.
template <int D, typename T>
void count_cell(const CellRows<D, T>& rows, const RowRange& range, const Step& step, uint64_t low, int64_t begin,
                int64_t end, int32_t* counts) {
  int64_t row = range.first;
  uint64_t row_word = 0;  // the word of the row, if the row exists
  auto advance_to = [&](uint64_t bound) {
    if (row == range.last || row_word >= bound) return;
    row = rows.behind(row, range.last, bound);
    if (row < range.last) row_word = rows.at(row);
  };
  if (row < range.last) row_word = rows.at(row);
  for (int64_t part = begin; part < end; ++part) {
    if (part == step.parts() - 1)
      row = range.last;
    else
      advance_to(low + (static_cast<uint64_t>(part + 1) << step.shift));
    counts[part] = static_cast<int32_t>(row - range.first);
  }
}

template <int D, typename T>
void count_parts(const Parallel& parallel, const CountParts<D, T>& in) {
  Step step(in.step, OrderWords<D>::count(in.keys.shape()));
  CellRows<D, T> rows{in.pos, in.keys.grid(), step.word};
  parallel.blocks(in.room, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t place = begin; place < end;) {
      int64_t group = place >> step.bits, s = first_of_group(in.groups, in.number, group + 1);
      if (s == in.number) {
        std::fill(in.counts + place, in.counts + end, 0);
        return;
      }
      int64_t first = group << step.bits, stop = std::min(end, first + step.parts());
      Splitter<D> splitter(rows.grid, in.splitters, s);
      count_cell(rows, RowRange(in.rows + 2 * s, in.n), step, splitter.words[step.word], place - first, stop - first,
                 in.counts + first);
      place = stop;
    }
  });
}

void choose_parts(const Parallel& parallel, const ChooseParts& in) {
  parallel.blocks(in.number, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) in.choose(s);
  });
}

template <int D, typename T>
void key_positions(const Parallel& parallel, const KeyPositions<D, T>& in) {
  KeyGrid<D> grid = in.keys.grid();
  int64_t count = in.num();
  parallel.blocks(in.number(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      Splitter<D> splitter(grid, in.splitters, s);
      in.below[s] = static_cast<int32_t>(partition_point(0, count, [&](int64_t row) {
        return OrderWords<D>::before(grid, in.pos + row * grid.dims, splitter.words);
      }));
    }
  });
}

}  // namespace

JZTREE_KERNEL(count_parts, CountParts);
JZTREE_PLAIN_KERNEL(choose_parts, ChooseParts);
JZTREE_KERNEL(key_positions, KeyPositions);

}  // namespace jztree
