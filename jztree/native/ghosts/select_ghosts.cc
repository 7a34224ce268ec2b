#include "select_ghosts.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "bounding_box.h"
#include "common/cpu/context.h"
#include "common/cpu/lanes.h"
#include "common/geometry.h"
#include "common/morton.h"
#include "common/space.h"
#include "row_runs.h"

namespace jztree {
namespace {

// The rows of one rank that others need, found block by block: runs of rows that are near each other.
template <int D, typename T>
struct GhostSelection {
  Space<D> space;
  const T* pos;
  const double* box;
  const int32_t* splits;
  Boxes<D, T> blocks, wanted;
  const int32_t* wanted_splits;
  const T* radius;  // of each wanted box; negative: it wants nothing

  // The boxes out of `candidates` that want something of [low, high].
  void near(const T* low, const T* high, const std::vector<int64_t>& candidates, std::vector<int64_t>& out) const {
    out.clear();
    for (int64_t i : candidates)
      if (within(space.gap2(low, high, wanted.lower + i * D, wanted.upper + i * D), space.enlarged(radius[i])))
        out.push_back(i);
  }

  // Which of up to `lanes` rows the boxes want something of, a bit a row.
  uint32_t wanted_of(int64_t first, int64_t count, const std::vector<int64_t>& boxes) const {
    using V = Lanes<double>;
    V x[D];
    for (int d = 0; d < D; ++d) {
      double wrapped[lanes] = {};
      for (int64_t i = 0; i < count; ++i) wrapped[i] = wrap(pos[(first + i) * D + d], box[d]);
      load(wrapped, x[d]);
    }
    const uint32_t all = (1u << count) - 1;
    uint32_t found = 0;
    for (size_t n = 0; n < boxes.size() && found != all; ++n) {
      const T *low = wanted.low(boxes[n]), *high = wanted.high(boxes[n]);
      V gap2{};
      for (int d = 0; d < D; ++d) {
        V gap = interval_gap<V>(x[d], x[d], V(low[d]), V(high[d]), V(space.period[d]));
        gap2 = gap2 + gap * gap;
      }
      const double far = space.enlarged(radius[boxes[n]]);
      found |= lanes_at_most(gap2, V(far * far)) & all;
    }
    return found;
  }

  // Boxes that want something of a run of blocks are looked for among those that want something of a longer run.
  static constexpr int levels = 3;
  static constexpr int64_t grains[levels] = {64, 8, 1};

  // Adds the rows of the blocks from `first` on, as many as the level's grain, that are wanted. boxes: room for those
  // of each level.
  void add_rows(int64_t first, int level, const std::vector<int64_t>& candidates, std::vector<int64_t>* boxes,
                std::vector<int32_t>& rows) const {
    const int64_t last = std::min(blocks.count, first + grains[level]);
    T low[D], high[D];
    bounding_box(blocks, first, last, low, high);
    if (!(low[0] <= high[0])) return;
    near(low, high, candidates, boxes[level]);
    if (boxes[level].empty()) return;
    if (level + 1 < levels) {
      for (int64_t block = first; block < last; block += grains[level + 1])
        add_rows(block, level + 1, boxes[level], boxes, rows);
      return;
    }
    for (int64_t row = splits[first]; row < splits[last]; row += lanes) {
      uint32_t found = wanted_of(row, std::min<int64_t>(lanes, splits[last] - row), boxes[level]);
      for (; found != 0; found &= found - 1) rows.push_back(static_cast<int32_t>(row + __builtin_ctz(found)));
    }
  }

  // The rows that rank r wants, in their order. low, high: the bounding box of all rows.
  std::vector<int32_t> rows_for(const Parallel& parallel, int64_t r, const T* low, const T* high) const {
    std::vector<int64_t> candidates, of_rank;
    for (int64_t i = wanted_splits[r]; i < wanted_splits[r + 1]; ++i)
      if (radius[i] >= 0 && !wanted.empty(i)) candidates.push_back(i);
    if (!(low[0] <= high[0])) return {};
    near(low, high, candidates, of_rank);
    if (of_rank.empty()) return {};
    std::vector<std::vector<int32_t>> parts(static_cast<size_t>((blocks.count + grains[0] - 1) / grains[0]));
    parallel.blocks(static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
      std::vector<int64_t> boxes[levels];
      for (int64_t part = begin; part < end; ++part)
        add_rows(part * grains[0], 0, of_rank, boxes, parts[static_cast<size_t>(part)]);
    });
    std::vector<int32_t> rows;
    for (const auto& part : parts) rows.insert(rows.end(), part.begin(), part.end());
    return rows;
  }
};

template <int D, typename T>
void select_ghosts(const Parallel& parallel, const SelectGhosts<D, T>& in) {
  double period[D];
  in.box.read(period);
  int64_t rows = in.num(), me = *in.rank, room = in.order.rows(), place = 0;
  if (in.blocks.splits[in.blocks.count] > rows)
    throw Refusal("ghosts were to be selected from rows that there are not.");
  if (in.wanted.splits[in.wanted.ranks()] > in.wanted.count)
    throw Refusal("ghosts were to be selected by boxes that there are not.");
  RowRuns<D, T> runs(parallel, in.blocks, in.pos, rows, period);
  const Boxes<D, T>& blocks = runs.boxes();
  GhostSelection<D, T> selection{Space<D>(period, T{}), in.pos,   period, runs.splits(), blocks, in.wanted,
                                 in.wanted.splits,      in.radius};
  T low[D], high[D];
  bounding_box(blocks, 0, blocks.count, low, high);
  for (int64_t r = 0; r < in.wanted.ranks(); ++r) {
    int32_t* out = in.order + std::min(place, room);
    const int64_t left = std::max<int64_t>(0, room - place);
    int64_t number = rows;
    if (r == me) {
      parallel.blocks(std::min(left, rows), 1 << 14, [&](int64_t begin, int64_t end) {
        std::iota(out + begin, out + end, static_cast<int32_t>(begin));
      });
    } else {
      std::vector<int32_t> chosen = selection.rows_for(parallel, r, low, high);
      number = static_cast<int64_t>(chosen.size());
      std::copy_n(chosen.begin(), std::min(left, number), out);
    }
    in.counts[r] = static_cast<int32_t>(number);
    place += number;
  }
}

}  // namespace

JZTREE_KERNEL(select_ghosts, SelectGhosts);

}  // namespace jztree
