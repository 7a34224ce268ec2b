// Boxes are joined from those of the leaves, and from rows if a cut is inside a leaf.

#include "covering_boxes.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <queue>
#include <vector>

#include "block_planes.h"
#include "common/cpu/context.h"
#include "cover_rule.h"

namespace jztree {
namespace {

template <int D, typename T>
struct Range {
  int64_t begin, end;
  T low[D], high[D];
  double priority;

  bool operator<(const Range& other) const {
    return priority != other.priority ? priority < other.priority : begin > other.begin;
  }
};

template <int D, typename T>
struct Cover {
  const T* pos;
  KeyGrid<D> grid;
  const int32_t* leaf_splits;
  const BlockPlanes<D, T>& leaves;

  void include(Range<D, T>& range, int64_t begin, int64_t end) const {
    include_rows<D>(pos, begin, end, grid.period, range.low, range.high);
  }

  Range<D, T> range(int64_t begin, int64_t end) const {
    Range<D, T> made{begin, end, {}, {}, 0};
    no_box<D>(made.low, made.high);
    const int32_t* last = leaf_splits + leaves[0].count + 1;
    int64_t first_leaf = std::lower_bound(leaf_splits, last, begin) - leaf_splits;
    int64_t last_leaf = std::upper_bound(leaf_splits, last, end) - leaf_splits - 1;
    if (first_leaf >= last_leaf) {
      include(made, begin, end);
    } else {
      include(made, begin, leaf_splits[first_leaf]);
      include(made, leaf_splits[last_leaf], end);
      leaves.include(first_leaf, last_leaf, made.low, made.high);
    }
    double longest = 0;
    for (int d = 0; d < D; ++d)
      longest = std::max(longest, static_cast<double>(made.high[d]) - static_cast<double>(made.low[d]));
    made.priority = cover_priority(longest, end - begin);
    return made;
  }

  MortonKey key(int64_t row) const { return Morton<D>::key(grid, pos + row * D); }

  // The row that starts the second part of a range: the first row with a 1 in the highest bit that differs between the
  // range's keys. If all keys are equal, it is the middle row.
  int64_t cut(int64_t begin, int64_t end) const {
    MortonKey first = key(begin);
    int level = highest_difference(first, key(end - 1));
    if (level == 0) return (begin + end) / 2;
    int64_t below = begin, above = end - 1;
    while (above - below > 1) {
      int64_t middle = (below + above) / 2;
      (highest_difference(first, key(middle)) < level ? below : above) = middle;
    }
    return above;
  }

  std::vector<Range<D, T>> run(int64_t num, int64_t capacity) const {
    std::priority_queue<Range<D, T>> open;
    std::vector<Range<D, T>> done;
    if (num > 0) open.push(range(0, num));
    while (!open.empty() && static_cast<int64_t>(open.size() + done.size()) < capacity) {
      Range<D, T> widest = open.top();
      open.pop();
      if (widest.end - widest.begin < 2 || !(widest.priority > 0)) {
        done.push_back(widest);
        continue;
      }
      int64_t middle = cut(widest.begin, widest.end);
      open.push(range(widest.begin, middle));
      open.push(range(middle, widest.end));
    }
    for (; !open.empty(); open.pop()) done.push_back(open.top());
    std::sort(done.begin(), done.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    return done;
  }
};

template <int D, typename T>
void covering_boxes(const Parallel& parallel, const CoveringBoxes<D, T>& in) {
  const BoxedRuns<D, T>& leaves = in.leaves;
  int64_t rows = in.num(), capacity = in.capacity();
  if (leaves.splits[leaves.count] != rows) throw Refusal("the last entry of leaf_splits must be the number of rows.");
  KeyGrid<D> grid = in.keys.grid();
  BlockPlanes<D, T> planes(parallel, leaves);
  Cover<D, T> search{in.pos, grid, leaves.splits, planes};
  auto ranges = search.run(rows, capacity);
  for (int64_t i = 0; i < capacity; ++i) {
    bool used = i < static_cast<int64_t>(ranges.size());
    const auto* range = used ? &ranges[static_cast<size_t>(i)] : nullptr;
    in.splits[i] = static_cast<int32_t>(used ? range->begin : rows);
    for (int d = 0; d < D; ++d) {
      T nowhere = std::numeric_limits<T>::infinity();
      in.lower[i * D + d] = used ? range->low[d] : nowhere;
      in.upper[i * D + d] = used ? range->high[d] : -nowhere;
    }
  }
  in.splits[capacity] = static_cast<int32_t>(rows);
}

}  // namespace

JZTREE_KERNEL(covering_boxes, CoveringBoxes);

}  // namespace jztree
