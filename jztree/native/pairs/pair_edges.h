// The edges of bins, with cells that find the edge of a pair without testing every edge.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "common/cpu/lanes.h"
#include "pair_rule.h"

namespace jztree {

// Edges of squared distances, with cells of an eighth of a power of two.
template <typename T>
class OctaveCells {
 public:
  explicit OctaveCells(const std::vector<T>& possibly) {
    constexpr int64_t max_cells = 4096;
    T smallest = 0;
    for (T bound : possibly)
      if (smallest == 0 && bound > 0) smallest = bound;
    if (smallest == 0) smallest = 1;
    int64_t last = octave(std::max(possibly.back(), smallest));
    base_ = std::max(octave(smallest), last - max_cells + 1);
    for (int64_t cell = base_, edge = 0; cell <= last; ++cell) {
      while (cell > base_ && possibly[static_cast<size_t>(edge)] < begin_of(cell)) ++edge;
      start_.push_back(static_cast<int32_t>(edge));
    }
  }
  // The first edge that may be at least x, which is at most the last edge.
  int64_t start(T x) const { return start_[static_cast<size_t>(std::max<int64_t>(octave(x) - base_, 0))]; }

 private:
  using Bits = std::conditional_t<std::is_same<T, float>::value, int32_t, int64_t>;
  static constexpr int shift = std::numeric_limits<T>::digits - 1 - 3;

  static int64_t octave(T x) {
    Bits bits;
    std::memcpy(&bits, &x, sizeof(bits));
    return bits >> shift;
  }
  static T begin_of(int64_t cell) {
    Bits bits = static_cast<Bits>(cell) << shift;
    T x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
  }

  int64_t base_;
  std::vector<int32_t> start_;
};

// Edges of lengths or cosines, with equal cells.
template <typename T>
class EqualCells {
 public:
  explicit EqualCells(const std::vector<T>& possibly) {
    if (possibly.empty()) return;
    T finite = 0;
    for (T bound : possibly)
      if (bound < std::numeric_limits<T>::max()) finite = std::max(finite, bound);
    cells_ = 4 * static_cast<int64_t>(possibly.size());
    inverse_ = finite > 0 ? static_cast<T>(cells_) / finite : 0;
    for (int64_t cell = 0, edge = 0; cell < cells_; ++cell) {
      // Slightly lower, because products are rounded.
      T begin = inverse_ > 0 ? (static_cast<T>(cell) / inverse_) * below_one<T> : 0;
      while (possibly[static_cast<size_t>(edge)] < begin) ++edge;
      start_.push_back(static_cast<int32_t>(edge));
    }
  }
  int64_t start(T x) const {
    T cell = x * inverse_;
    if (!(cell > 0)) return 0;
    return start_[static_cast<size_t>(cell < static_cast<T>(cells_) ? static_cast<int64_t>(cell) : cells_ - 1)];
  }

 private:
  int64_t cells_ = 0;
  T inverse_ = 0;
  std::vector<int32_t> start_;
};

// The bounds of edges, with one more edge that contains everything.
template <typename T>
struct EdgeBounds {
  int64_t count = 0;
  const T *surely = nullptr, *possibly = nullptr;

  // Anything above this is outside every edge.
  T outermost() const { return possibly[count - 1]; }

  // For quantities from gap to reach: no quantity is within the edges before `lo`, and all are within the edges from
  // `hi` on.
  void narrow(T gap, T reach, int64_t& lo, int64_t& hi) const {
    while (lo < hi && gap > possibly[lo]) ++lo;
    while (hi > lo && reach <= surely[hi - 1]) --hi;
  }
};

template <typename T, template <typename> class Cells>
struct EdgeTable {
  int64_t count;
  std::vector<T> surely, possibly;  // and more that contain everything
  std::vector<double> exact;
  Cells<T> cells;

  explicit EdgeTable(const std::vector<PairEdge<T>>& edges)
      : count(static_cast<int64_t>(edges.size())),
        surely(column<T>(edges, [](const PairEdge<T>& edge) { return edge.surely; })),
        possibly(column<T>(edges, [](const PairEdge<T>& edge) { return edge.possibly; })),
        exact(column<double>(edges, [](const PairEdge<T>& edge) { return edge.exact; })),
        cells(possibly) {
    // Vectors are loaded from every place.
    for (std::vector<T>* bounds : {&surely, &possibly})
      bounds->insert(bounds->end(), 1 + lanes, std::numeric_limits<T>::infinity());
  }

  EdgeBounds<T> bounds() const { return {count, surely.data(), possibly.data()}; }

  // The first edge that contains a pair with a quantity from `low` to `high`; `count`: none. within(exact): the
  // decision in float64.
  template <typename Within>
  int64_t first_within(T low, T high, const Within& within) const {
    if (low > possibly[static_cast<size_t>(count - 1)]) return count;
    int64_t edge = cells.start(low);
    // Most cells have at most one edge, and a branch on the side of a pair would be unpredictable. So the first step
    // has no branch.
    edge += low > possibly[static_cast<size_t>(edge)];
    while (low > possibly[static_cast<size_t>(edge)]) ++edge;
    while (!(high <= surely[static_cast<size_t>(edge)]) && !within(exact[static_cast<size_t>(edge)])) ++edge;
    return edge;
  }

 private:
  template <typename Number, typename Of>
  static std::vector<Number> column(const std::vector<PairEdge<T>>& edges, const Of& of) {
    std::vector<Number> found;
    for (const PairEdge<T>& edge : edges) found.push_back(of(edge));
    return found;
  }
};

}  // namespace jztree
