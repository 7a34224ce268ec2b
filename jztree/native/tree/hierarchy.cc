// A single pass over the particles; the level of each row compares two keys.

#include "hierarchy.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/cpu/context.h"
#include "common/cpu/key_rises.h"
#include "common/cpu/row_box.h"

namespace jztree {
namespace {

// Greater than any level: the first row has no predecessor.
constexpr uint8_t first_level = 255;

// The level of a row is the position of the highest differing bit between its key and the previous row's. This computes
// levels for a few rows at a time.
template <int D, typename T>
class RowLevels {
 public:
  struct Level {
    int64_t row;
    int level;
  };

  // For rows before `last`, which must be requested in order.
  RowLevels(const KeyGrid<D>& grid, const T* pos, int64_t last) : grid_(grid), pos_(pos), last_(last), rises_(grid) {}

  // The first of the rows [row, stop) with the highest level; `row` and 0 if the range is empty. A row must precede
  // `row`.
  Level highest(int64_t row, int64_t stop) {
    Level found{row, 0};
    while (row < stop) {
      if (row >= end_) look_up(row);
      const int64_t first = row - begin_, until = std::min(stop, end_) - begin_;
      int32_t code = 0;
      for (int64_t i = first; i < until; ++i) code = std::max(code, codes_[i]);
      if (code / most > found.level) found = {begin_ + most - 1 - code % most, code / most};
      row = begin_ + until;
    }
    return found;
  }

  // Whether the rows so far are in z-order.
  bool ordered() const { return ordered_; }

 private:
  static constexpr int32_t most = KeyRises<D, T>::most;

  void look_up(int64_t row) {
    begin_ = row;
    end_ = std::min(last_, row + most);
    const int64_t rows = end_ - begin_;
    rises_.find(pos_ + row * D, rows, codes_);
    int32_t lowest_code = 1;
    for (int64_t i = 0; i < rows; ++i) lowest_code = std::min(lowest_code, codes_[i]);
    if (lowest_code <= 0) settle(rows);
    // Among rows with the highest level, the first has the highest code.
    for (int32_t i = 0; i < rows; ++i) codes_[i] = codes_[i] * most + (most - 1 - i);
  }

  // Set the levels of rows whose first halves of keys do not ascend.
  JZTREE_APART void settle(int64_t rows) {
    for (int64_t i = 0; i < rows; ++i) {
      if (codes_[i] > 0) continue;
      const T* x = pos_ + (begin_ + i) * D;
      const MortonKey previous = Morton<D>::key(grid_, x - D), key = Morton<D>::key(grid_, x);
      ordered_ &= !(key < previous);
      codes_[i] = highest_difference(previous, key);
    }
  }

  const KeyGrid<D>& grid_;
  const T* pos_;
  const int64_t last_;
  KeyRises<D, T> rises_;
  bool ordered_ = true;
  // Known rows. The code of a row combines its level and, in the low bits, the number of rows that may follow.
  int64_t begin_ = 0, end_ = 0;
  int32_t codes_[most];
};

template <int D, typename T>
struct Builder {
  static constexpr int64_t nodes_of_block = 1 << 10;

  const Parallel& parallel;
  const T* pos;
  int64_t num;
  KeyGrid<D> grid;
  const TreeLayout& layout;
  int32_t *splits, *particle_splits;
  T *lower, *upper;

  // The boundary row and its level for each leaf, chosen in its window. Returns false if the rows are not in z-order.
  bool leaf_boundaries(int64_t leaf_size, uint8_t* level) {
    std::atomic<bool> in_order{true};
    parallel.blocks(layout.sizes[0], 64, [&](int64_t begin, int64_t end) {
      RowLevels<D, T> levels(grid, pos, std::min(num, end * leaf_size));
      for (int64_t leaf = begin; leaf < end; ++leaf) {
        const int64_t row = std::min(num, leaf * leaf_size), stop = std::min(num, row + leaf_size);
        typename RowLevels<D, T>::Level best = levels.highest(std::max<int64_t>(row, 1), stop);
        if (row == 0) best = {0, num > 0 ? first_level : 0};
        splits[leaf] = particle_splits[leaf] = static_cast<int32_t>(best.row);
        level[leaf] = static_cast<uint8_t>(best.level);
      }
      if (!levels.ordered()) in_order.store(false, std::memory_order_relaxed);
    });
    splits[layout.sizes[0]] = particle_splits[layout.sizes[0]] = static_cast<int32_t>(num);
    return in_order.load();
  }

  // The window rule over the nodes of plane - 1. level: read for these nodes, and overwritten with the values of the
  // new plane.
  void plane_boundaries(int plane, int64_t fan_out, std::vector<uint8_t>& level) {
    size_t p = static_cast<size_t>(plane);
    int64_t below = layout.sizes[p - 1], size = layout.sizes[p];
    const int32_t* rows_below = particle_splits + layout.split_start(plane - 1);
    int32_t* split = splits + layout.split_start(plane);
    int32_t* rows = particle_splits + layout.split_start(plane);
    std::vector<uint8_t> merged(static_cast<size_t>(size));
    parallel.blocks(size, nodes_of_block, [&](int64_t begin, int64_t end) {
      for (int64_t node = begin; node < end; ++node) {
        int64_t best = node * fan_out;
        int best_level = -1;
        for (int64_t child = best; child < std::min(below, (node + 1) * fan_out); ++child) {
          // Trailing leaves without particles have no key; they join the node before them.
          int child_level = rows_below[child] < num ? level[static_cast<size_t>(child)] : -1;
          if (child_level > best_level) best = child, best_level = child_level;
        }
        split[node] = static_cast<int32_t>(best);
        rows[node] = rows_below[best];
        merged[static_cast<size_t>(node)] = static_cast<uint8_t>(std::max(best_level, 0));
      }
    });
    split[size] = static_cast<int32_t>(below);
    rows[size] = static_cast<int32_t>(num);
    level = std::move(merged);
  }

  void leaf_boxes() {
    parallel.blocks(layout.sizes[0], 128, [&](int64_t begin, int64_t end) {
      for (int64_t leaf = begin; leaf < end; ++leaf) {
        T low[D], high[D];
        no_box<D>(low, high);
        include_rows<D>(pos, splits[leaf], splits[leaf + 1], grid.period, low, high);
        std::copy(low, low + D, lower + leaf * D);
        std::copy(high, high + D, upper + leaf * D);
      }
    });
  }

  void plane_boxes(int plane) {
    const int32_t* split = splits + layout.split_start(plane);
    int64_t below = layout.starts[static_cast<size_t>(plane) - 1], here = layout.starts[static_cast<size_t>(plane)];
    parallel.blocks(layout.sizes[static_cast<size_t>(plane)], nodes_of_block, [&](int64_t begin, int64_t end) {
      for (int64_t node = begin; node < end; ++node) {
        T low[D], high[D];
        no_box<D>(low, high);
        for (int64_t child = below + split[node]; child < below + split[node + 1]; ++child)
          for (int d = 0; d < D; ++d) {
            low[d] = std::min(low[d], lower[child * D + d]);
            high[d] = std::max(high[d], upper[child * D + d]);
          }
        std::copy(low, low + D, lower + (here + node) * D);
        std::copy(high, high + D, upper + (here + node) * D);
      }
    });
  }

  bool build(int64_t leaf_size, int64_t fan_out) {
    std::vector<uint8_t> level(static_cast<size_t>(layout.sizes[0]));
    bool in_order = leaf_boundaries(leaf_size, level.data());
    leaf_boxes();
    for (int plane = 1; plane < layout.planes(); ++plane) {
      plane_boundaries(plane, fan_out, level);
      plane_boxes(plane);
    }
    return in_order;
  }
};

template <int D, typename T>
void hierarchy(const Parallel& parallel, const HierarchyOver<D, T>& in) {
  Builder<D, T> builder{parallel,           in.pos,   in.num(), in.keys.grid(), in.layout, in.splits,
                        in.particle_splits, in.lower, in.upper};
  *in.unordered = builder.build(in.leaf_size, in.fan_out) ? 0 : 1;
}

}  // namespace

JZTREE_KERNEL(hierarchy, HierarchyOver);

}  // namespace jztree
