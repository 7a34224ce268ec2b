// A few boxes that cover the particles of a rank closely: what it publishes.
//
// The rows of a rank are a range of the z-order, which may begin or end with a few rows beyond a jump to a far place.
// So ranges are split where their keys differ in the highest bit, the ones with the longest boxes and the most rows
// first, until there are as many as there may be. Boxes come from those of the leaves, and from rows where a cut is in
// a leaf.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <queue>
#include <vector>

#include "cover_rule.h"
#include "common/morton.h"
#include "common/cpu/handler.h"

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
  const T *leaf_lower, *leaf_upper;
  int64_t leaves;

  void include_rows(Range<D, T>& range, int64_t begin, int64_t end) const {
    for (int64_t row = begin; row < end; ++row)
      for (int d = 0; d < D; ++d) {
        T x = wrap(pos[row * D + d], grid.period[d]);
        range.low[d] = std::min(range.low[d], x);
        range.high[d] = std::max(range.high[d], x);
      }
  }

  Range<D, T> range(int64_t begin, int64_t end) const {
    Range<D, T> made{begin, end, {}, {}, 0};
    std::fill(made.low, made.low + D, std::numeric_limits<T>::infinity());
    std::fill(made.high, made.high + D, -std::numeric_limits<T>::infinity());
    const int32_t* last = leaf_splits + leaves + 1;
    int64_t first_leaf = std::lower_bound(leaf_splits, last, begin) - leaf_splits;
    int64_t last_leaf = std::upper_bound(leaf_splits, last, end) - leaf_splits - 1;
    if (first_leaf >= last_leaf) {
      include_rows(made, begin, end);
    } else {
      include_rows(made, begin, leaf_splits[first_leaf]);
      include_rows(made, leaf_splits[last_leaf], end);
      for (int64_t leaf = first_leaf; leaf < last_leaf; ++leaf)
        for (int d = 0; d < D; ++d) {
          made.low[d] = std::min(made.low[d], leaf_lower[leaf * D + d]);
          made.high[d] = std::max(made.high[d], leaf_upper[leaf * D + d]);
        }
    }
    double longest = 0;
    for (int d = 0; d < D; ++d)
      longest = std::max(longest, static_cast<double>(made.high[d]) - static_cast<double>(made.low[d]));
    made.priority = cover_priority(longest, end - begin);
    return made;
  }

  MortonKey key(int64_t row) const { return Morton<D>::key(grid, pos + row * D); }

  // The first row whose key has the highest bit in which the keys of the range differ; the middle if they do not.
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

  std::vector<Range<D, T>> run(int64_t num, int64_t most) const {
    std::priority_queue<Range<D, T>> open;
    std::vector<Range<D, T>> done;
    if (num > 0) open.push(range(0, num));
    while (!open.empty() && static_cast<int64_t>(open.size() + done.size()) < most) {
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

ffi::Error cover(ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num, ffi::AnyBuffer lower, ffi::AnyBuffer upper,
                 ffi::AnyBuffer box, ffi::Buffer<ffi::S32> leaf_splits, ffi::AnyBuffer leaf_lower,
                 ffi::AnyBuffer leaf_upper, ffi::Result<ffi::Buffer<ffi::S32>> splits,
                 ffi::Result<ffi::AnyBuffer> box_lower, ffi::Result<ffi::AnyBuffer> box_upper) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    double period[D];
    int64_t leaves = static_cast<int64_t>(leaf_splits.element_count()) - 1;
    int64_t most = static_cast<int64_t>(splits->element_count()) - 1, rows = read_count(num, pos.dimensions()[0]);
    auto fits = [&](const auto& buffer, int64_t count) {
      return buffer.element_type() == pos.element_type() && static_cast<int64_t>(buffer.element_count()) == count * D;
    };
    if (!read_exact(box, D, period) || !fits(lower, 1) || !fits(upper, 1) || !fits(leaf_lower, leaves) ||
        !fits(leaf_upper, leaves) || !fits(*box_lower, most) || !fits(*box_upper, most) || most < 1 ||
        leaf_splits.typed_data()[leaves] != rows)
      return invalid("cover was called with arrays that do not fit together.");
    Cover<D, T> search{pos.typed_data<T>(),        KeyGrid<D>(lower.typed_data<T>(), upper.typed_data<T>(), period),
                       leaf_splits.typed_data(),   leaf_lower.typed_data<T>(),
                       leaf_upper.typed_data<T>(), leaves};
    auto ranges = search.run(rows, most);
    for (int64_t i = 0; i < most; ++i) {
      bool used = i < static_cast<int64_t>(ranges.size());
      const auto* range = used ? &ranges[static_cast<size_t>(i)] : nullptr;
      splits->typed_data()[i] = static_cast<int32_t>(used ? range->begin : rows);
      for (int d = 0; d < D; ++d) {
        T nowhere = std::numeric_limits<T>::infinity();
        box_lower->typed_data<T>()[i * D + d] = used ? range->low[d] : nowhere;
        box_upper->typed_data<T>()[i * D + d] = used ? range->high[d] : -nowhere;
      }
    }
    splits->typed_data()[most] = static_cast<int32_t>(rows);
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_cover, cover);

}  // namespace jztree
