// A hierarchy over blocks of rows: the box of each block, and larger boxes around groups of boxes, which reduce the
// number of tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "boxes.h"
#include "common/cpu/parallel.h"
#include "common/cpu/row_box.h"

namespace jztree {

// Extend [low, high] to the boxes [begin, end).
template <int D, typename T>
void include_boxes(const Boxes<D, T>& boxes, int64_t begin, int64_t end, T* low, T* high) {
  for (int64_t i = begin; i < end; ++i) include_box<D>(boxes.low(i), boxes.high(i), low, high);
}

// The blocks, and above them boxes around runs of 8, 64 and 512 blocks.
template <int D, typename T>
class BlockPlanes {
 public:
  static constexpr int64_t fan_out = 8;
  static constexpr int planes = 4;

  BlockPlanes(const Parallel& parallel, const Boxes<D, T>& blocks) : boxes_{blocks} {
    for (int plane = 1; plane < planes; ++plane) {
      const Boxes<D, T>& below = boxes_[plane - 1];
      int64_t runs = (below.count + fan_out - 1) / fan_out;
      T* low = make_room(lower_[plane - 1], runs);
      T* high = make_room(upper_[plane - 1], runs);
      parallel.blocks(runs, 512, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          no_box<D>(low + i * D, high + i * D);
          include_boxes(below, i * fan_out, std::min(below.count, (i + 1) * fan_out), low + i * D, high + i * D);
        }
      });
      boxes_[plane] = {low, high, runs};
    }
  }
  BlockPlanes(const BlockPlanes&) = delete;
  BlockPlanes& operator=(const BlockPlanes&) = delete;

  const Boxes<D, T>& operator[](int plane) const { return boxes_[plane]; }

  // The highest plane with enough boxes to share among all threads.
  int first_plane() const {
    int plane = planes - 1;
    while (plane > 0 && boxes_[plane].count < 16) --plane;
    return plane;
  }

  // Extend [low, high] to the blocks [begin, end).
  void include(int64_t begin, int64_t end, T* low, T* high) const {
    int plane = 0;
    for (; plane < planes - 1 && end - begin >= 2 * fan_out; ++plane) {
      const int64_t first = (begin + fan_out - 1) / fan_out, last = end / fan_out;
      include_boxes(boxes_[plane], begin, first * fan_out, low, high);
      include_boxes(boxes_[plane], last * fan_out, end, low, high);
      begin = first, end = last;
    }
    include_boxes(boxes_[plane], begin, end, low, high);
  }

 private:
  static T* make_room(std::vector<T>& corners, int64_t boxes) {
    corners.resize(static_cast<size_t>(boxes * D));
    return corners.data();
  }

  Boxes<D, T> boxes_[planes];
  std::vector<T> lower_[planes - 1], upper_[planes - 1];
};

}  // namespace jztree
