#include "select_ghosts.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "block_planes.h"
#include "common/cpu/context.h"
#include "common/cpu/row_box.h"
#include "common/morton.h"
#include "common/space.h"
#include "wanting_boxes.h"

namespace jztree {
namespace {

// The rows of one rank that other ranks need. The search goes block by block; a block is a run of rows that are near
// each other.
template <int D, typename T>
struct GhostSelection {
  const SelectGhosts<D, T>& in;
  const double* box;
  const Space<D> space;
  const BlockPlanes<D, T>& blocks;

  // The work arrays of a thread: for each plane, the boxes that want part of the current box.
  struct Near {
    std::vector<WantingBoxes<D>> of_plane;

    Near(const double* period, int64_t capacity) {
      for (int plane = 0; plane < BlockPlanes<D, T>::planes; ++plane) of_plane.emplace_back(period, capacity);
    }
  };

  // The first block of box i of a plane.
  int64_t first_block(int plane, int64_t i) const {
    for (; plane > 0; --plane) i *= BlockPlanes<D, T>::fan_out;
    return std::min(i, blocks[0].count);
  }

  // Add the wanted rows of box i of a plane. candidates: the boxes that want part of its parent.
  void add_rows(int plane, int64_t i, const WantingBoxes<D>& candidates, Near& near, std::vector<int32_t>& rows) const {
    if (blocks[plane].empty(i)) return;
    WantingBoxes<D>& here = near.of_plane[static_cast<size_t>(plane)];
    here.choose_near(blocks[plane].low(i), blocks[plane].high(i), candidates);
    if (here.empty()) return;
    const int64_t begin = in.blocks.splits[first_block(plane, i)], end = in.blocks.splits[first_block(plane, i + 1)];
    if (here.one_wants_all()) {
      rows.resize(rows.size() + static_cast<size_t>(end - begin));
      std::iota(rows.end() - (end - begin), rows.end(), static_cast<int32_t>(begin));
    } else if (plane == 0) {
      add_wanted(begin, end, here, rows);
    } else {
      constexpr int64_t fan_out = BlockPlanes<D, T>::fan_out;
      const int64_t last = std::min(blocks[plane - 1].count, (i + 1) * fan_out);
      for (int64_t child = i * fan_out; child < last; ++child) add_rows(plane - 1, child, here, near, rows);
    }
  }

  void add_wanted(int64_t begin, int64_t end, const WantingBoxes<D>& boxes, std::vector<int32_t>& rows) const {
    for (int64_t row = begin; row < end; row += lanes) {
      const int64_t count = std::min<int64_t>(lanes, end - row);
      Lanes<double> x[D];
      for (int d = 0; d < D; ++d) {
        double wrapped[lanes] = {};
        for (int64_t i = 0; i < count; ++i) wrapped[i] = wrap(in.pos[(row + i) * D + d], box[d]);
        load(wrapped, x[d]);
      }
      for (uint32_t wanted_points = boxes.wanted(x, (1u << count) - 1); wanted_points != 0;
           wanted_points &= wanted_points - 1)
        rows.push_back(static_cast<int32_t>(row + __builtin_ctz(wanted_points)));
    }
  }

  // The rows that rank r wants, in order. low, high: the bounding box of the rows.
  std::vector<int32_t> rows_for(const Parallel& parallel, int64_t r, const T* low, const T* high) const {
    const int64_t first = in.wanted.splits[r], count = std::max<int64_t>(0, in.wanted.splits[r + 1] - first);
    WantingBoxes<D> of_rank(space.period, count), near_all(space.period, count);
    for (int64_t i = first; i < first + count; ++i)
      if (in.radius[i] >= 0 && !in.wanted.empty(i))
        of_rank.add(in.wanted.low(i), in.wanted.high(i), space.enlarged(in.radius[i]));
    if (!(low[0] <= high[0])) return {};
    near_all.choose_near(low, high, of_rank);
    if (near_all.empty()) return {};
    const int plane = blocks.first_plane();
    std::vector<std::vector<int32_t>> parts(static_cast<size_t>(blocks[plane].count));
    parallel.blocks(blocks[plane].count, 1, [&](int64_t begin, int64_t end) {
      Near near(space.period, count);
      for (int64_t part = begin; part < end; ++part)
        add_rows(plane, part, near_all, near, parts[static_cast<size_t>(part)]);
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
  if (in.blocks.splits[in.blocks.count] > rows) throw Refusal("the blocks of rows end after the last row.");
  if (in.wanted.splits[in.wanted.ranks()] > in.wanted.count)
    throw Refusal("the boxes of the ranks end after the last box.");
  const BlockPlanes<D, T> blocks(parallel, in.blocks);
  const GhostSelection<D, T> selection{in, period, Space<D>(period, T{}), blocks};
  T low[D], high[D];
  no_box<D>(low, high);
  blocks.include(0, in.blocks.count, low, high);
  for (int64_t r = 0; r < in.wanted.ranks(); ++r) {
    int32_t* out = in.order + std::min(place, room);
    const int64_t rest_room = std::max<int64_t>(0, room - place);
    int64_t number = rows;
    if (r == me) {
      parallel.blocks(std::min(rest_room, rows), 1 << 14, [&](int64_t begin, int64_t end) {
        std::iota(out + begin, out + end, static_cast<int32_t>(begin));
      });
    } else {
      std::vector<int32_t> chosen = selection.rows_for(parallel, r, low, high);
      number = static_cast<int64_t>(chosen.size());
      std::copy_n(chosen.begin(), std::min(rest_room, number), out);
    }
    in.counts[r] = static_cast<int32_t>(number);
    place += number;
  }
}

}  // namespace

JZTREE_KERNEL(select_ghosts, SelectGhosts);

}  // namespace jztree
