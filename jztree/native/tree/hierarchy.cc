// One pass over the particles, two of key work each.

#include "hierarchy.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/cpu/context.h"
#include "common/cpu/key_block.h"
#include "common/cpu/row_box.h"

namespace jztree {
namespace {

// Above any difference of two keys: the first row has no predecessor.
constexpr uint8_t first_level = 255;

template <int D, typename T>
struct Builder {
  const Parallel& parallel;
  const T* pos;
  int64_t num;
  KeyGrid<D> grid;
  const TreeLayout& layout;
  int32_t *splits, *particle_splits;
  T *lower, *upper;

  // Rows of a window: a boundary and its level for each leaf. Returns false if the rows are not in z-order.
  bool leaf_boundaries(int64_t leaf_size, uint8_t* level) {
    std::atomic<bool> in_order{true};
    parallel.blocks(layout.sizes[0], 64, [&](int64_t begin, int64_t end) {
      bool ordered = true;
      KeyBlock<D, T> block(grid);
      uint64_t keys[KeyBlock<D, T>::most];
      int64_t row = begin * leaf_size;
      uint64_t previous = row > 0 && row < num ? Morton<D>::high(grid, pos + (row - 1) * D) : 0;
      for (int64_t leaf = begin; leaf < end; ++leaf) {
        int64_t best = std::min(row, num);
        int best_level = -1;
        for (int64_t stop = std::min(num, row + leaf_size); row < stop;) {
          int64_t count = std::min(stop - row, KeyBlock<D, T>::most);
          block.high(pos + row * D, count, keys);
          for (int64_t i = 0; i < count; ++i, ++row) {
            int rows_level = row == 0 ? first_level : rise(previous, keys[i], row);
            ordered &= rows_level >= 0;
            if (rows_level > best_level) best = row, best_level = rows_level;
            previous = keys[i];
          }
        }
        splits[leaf] = particle_splits[leaf] = static_cast<int32_t>(best);
        level[leaf] = static_cast<uint8_t>(std::max(best_level, 0));
      }
      if (!ordered) in_order.store(false, std::memory_order_relaxed);
    });
    splits[layout.sizes[0]] = particle_splits[layout.sizes[0]] = static_cast<int32_t>(num);
    return in_order.load();
  }

  // The place of the highest bit in which the keys of a row and the one before differ; -1 if they are out of order.
  // high: first halves of both, which nearly always decide.
  int rise(uint64_t previous_high, uint64_t high, int64_t row) const {
    MortonKey previous{previous_high, 0}, key{high, 0};
    if (previous_high == high) {
      previous = Morton<D>::key(grid, pos + (row - 1) * D);
      key = Morton<D>::key(grid, pos + row * D);
    }
    return key < previous ? -1 : highest_difference(previous, key);
  }

  // The window rule over the nodes of plane - 1. level is read for those and overwritten with the new plane's.
  void plane_boundaries(int plane, int64_t fan_out, std::vector<uint8_t>& level) {
    size_t p = static_cast<size_t>(plane);
    int64_t below = layout.sizes[p - 1], size = layout.sizes[p];
    const int32_t* rows_below = particle_splits + layout.split_start(plane - 1);
    int32_t* split = splits + layout.split_start(plane);
    int32_t* rows = particle_splits + layout.split_start(plane);
    std::vector<uint8_t> merged(static_cast<size_t>(size));
    for (int64_t node = 0; node < size; ++node) {
      int64_t best = node * fan_out;
      int best_level = -1;
      for (int64_t child = best; child < std::min(below, (node + 1) * fan_out); ++child) {
        // Trailing leaves without particles have no key; they go with whoever comes before.
        int child_level = rows_below[child] < num ? level[static_cast<size_t>(child)] : -1;
        if (child_level > best_level) best = child, best_level = child_level;
      }
      split[node] = static_cast<int32_t>(best);
      rows[node] = rows_below[best];
      merged[static_cast<size_t>(node)] = static_cast<uint8_t>(std::max(best_level, 0));
    }
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
    for (int64_t node = 0; node < layout.sizes[static_cast<size_t>(plane)]; ++node) {
      T *low = lower + (here + node) * D, *high = upper + (here + node) * D;
      no_box<D>(low, high);
      for (int64_t child = below + split[node]; child < below + split[node + 1]; ++child)
        for (int d = 0; d < D; ++d) {
          low[d] = std::min(low[d], lower[child * D + d]);
          high[d] = std::max(high[d], upper[child * D + d]);
        }
    }
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
