#include "select_ghosts.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "block_planes.h"
#include "common/cpu/context.h"
#include "common/cpu/lanes.h"
#include "common/cpu/row_box.h"
#include "common/geometry.h"
#include "common/morton.h"
#include "common/space.h"

namespace jztree {
namespace {

// The rows of one rank that others need, found block by block: runs of rows that are near each other.
template <int D, typename T>
struct GhostSelection {
  Space<D> space;
  const T* pos;
  const double* box;
  const int32_t* splits;
  const BlockPlanes<D, T>& blocks;
  Boxes<D, T> wanted;
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

  // What a thread works with: the boxes that want something of what is looked at on each plane, and of some rows.
  struct Near {
    std::vector<int64_t> of_plane[BlockPlanes<D, T>::planes], of_rows;
  };

  // Adds the rows of what is in box i of a plane that are wanted. Boxes that want something of it are looked for among
  // those that want something of the one above.
  void add_rows(int plane, int64_t i, const std::vector<int64_t>& candidates, Near& known,
                std::vector<int32_t>& rows) const {
    const Boxes<D, T>& boxes = blocks[plane];
    std::vector<int64_t>& here = known.of_plane[plane];
    if (boxes.empty(i)) return;
    near(boxes.low(i), boxes.high(i), candidates, here);
    if (here.empty()) return;
    if (plane == 0) return add_rows_of_block(splits[i], splits[i + 1], here, known.of_rows, rows);
    constexpr int64_t fan_out = BlockPlanes<D, T>::fan_out;
    const int64_t end = std::min(blocks[plane - 1].count, (i + 1) * fan_out);
    for (int64_t child = i * fan_out; child < end; ++child) add_rows(plane - 1, child, here, known, rows);
  }

  // Blocks may be leaves, or of a thousand rows: then a few rows at a time have a box of their own.
  static constexpr int64_t few_rows = 32, rows_of_leaf = 64;

  void add_rows_of_block(int64_t begin, int64_t end, const std::vector<int64_t>& candidates,
                         std::vector<int64_t>& of_rows, std::vector<int32_t>& rows) const {
    if (end - begin <= rows_of_leaf) return add_wanted(begin, end, candidates, rows);
    for (int64_t first = begin; first < end; first += few_rows) {
      const int64_t last = std::min(end, first + few_rows);
      T low[D], high[D];
      no_box<D>(low, high);
      include_rows<D>(pos, first, last, box, low, high);
      near(low, high, candidates, of_rows);
      if (!of_rows.empty()) add_wanted(first, last, of_rows, rows);
    }
  }

  void add_wanted(int64_t begin, int64_t end, const std::vector<int64_t>& boxes, std::vector<int32_t>& rows) const {
    for (int64_t row = begin; row < end; row += lanes) {
      uint32_t found = wanted_of(row, std::min<int64_t>(lanes, end - row), boxes);
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
    const int plane = blocks.first_plane();
    std::vector<std::vector<int32_t>> parts(static_cast<size_t>(blocks[plane].count));
    parallel.blocks(blocks[plane].count, 1, [&](int64_t begin, int64_t end) {
      Near known;
      for (int64_t part = begin; part < end; ++part)
        add_rows(plane, part, of_rank, known, parts[static_cast<size_t>(part)]);
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
  const BlockPlanes<D, T> blocks(parallel, in.blocks);
  GhostSelection<D, T> selection{Space<D>(period, T{}), in.pos,   period, in.blocks.splits, blocks, in.wanted,
                                 in.wanted.splits,      in.radius};
  T low[D], high[D];
  no_box<D>(low, high);
  blocks.include(0, in.blocks.count, low, high);
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
