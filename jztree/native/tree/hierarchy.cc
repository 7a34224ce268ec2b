// The plane hierarchy over z-ordered particles, by the window rule.
//
// The rows are cut in windows of leaf_size; each window contributes one leaf boundary, at the row whose Morton key
// differs from its predecessor's in the highest bit. So a leaf has 1 to 2 leaf_size - 1 particles and follows the
// z-order cells, the number of leaves is known before the data is, and every window is independent of the others. The
// planes above apply the same rule to the boundaries below, in windows of fan_out. One pass over the particles, two of
// key work each.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "common/morton.h"
#include "common/tree_layout.h"
#include "common/cpu/handler.h"
#include "common/cpu/key_block.h"
#include "common/cpu/parallel.h"

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
  TreeLayout layout;
  int32_t *splits, *particle_splits;
  T *lower, *upper;

  // Rows of a window: a boundary and its level for each leaf. Returns false if the rows are not in z-order.
  bool leaf_boundaries(int64_t leaf_size, uint8_t* level) {
    std::atomic<bool> in_order{true};
    parallel.blocks(layout.sizes[0], 256, [&](int64_t begin, int64_t end) {
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
    parallel.blocks(layout.sizes[0], 512, [&](int64_t begin, int64_t end) {
      for (int64_t leaf = begin; leaf < end; ++leaf) {
        T low[D], high[D];
        std::fill(low, low + D, std::numeric_limits<T>::infinity());
        std::fill(high, high + D, -std::numeric_limits<T>::infinity());
        for (int64_t row = splits[leaf]; row < splits[leaf + 1]; ++row)
          for (int d = 0; d < D; ++d) {
            T x = wrap(pos[row * D + d], grid.period[d]);
            low[d] = std::min(low[d], x);
            high[d] = std::max(high[d], x);
          }
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
      std::fill(low, low + D, std::numeric_limits<T>::infinity());
      std::fill(high, high + D, -std::numeric_limits<T>::infinity());
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

ffi::Error hierarchy(ffi::ThreadPool pool, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num, ffi::AnyBuffer lower,
                     ffi::AnyBuffer upper, ffi::AnyBuffer box, ffi::Result<ffi::Buffer<ffi::S32>> splits,
                     ffi::Result<ffi::Buffer<ffi::S32>> particle_splits, ffi::Result<ffi::AnyBuffer> node_lower,
                     ffi::Result<ffi::AnyBuffer> node_upper, ffi::Result<ffi::Buffer<ffi::S32>> unordered,
                     ffi::Span<const int64_t> plane_sizes, int64_t leaf_size, int64_t fan_out) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    TreeLayout layout(plane_sizes);
    double period[D];
    auto fits = [](const auto& buffer, int64_t count) { return static_cast<int64_t>(buffer.element_count()) == count; };
    if (!read_exact(box, D, period) || !fits(lower, D) || !fits(upper, D) || !fits(*splits, layout.splits()) ||
        !fits(*particle_splits, layout.splits()) || !fits(*node_lower, layout.nodes() * D) ||
        !fits(*node_upper, layout.nodes() * D))
      return invalid("hierarchy was called with arrays that do not fit together.");
    Parallel parallel(pool);
    Builder<D, T> builder{parallel,
                          pos.typed_data<T>(),
                          read_count(num, pos.dimensions()[0]),
                          KeyGrid<D>(lower.typed_data<T>(), upper.typed_data<T>(), period),
                          layout,
                          splits->typed_data(),
                          particle_splits->typed_data(),
                          node_lower->typed_data<T>(),
                          node_upper->typed_data<T>()};
    // Not an error here: all ranks have to fail together.
    unordered->typed_data()[0] = builder.build(leaf_size, fan_out) ? 0 : 1;
    return ffi::Error::Success();
  });
}

// Mass and centre of mass of every node, summed in float64 over its particles in z-order. mass has one element if all
// particles share it. Centres are those of the wrapped positions, so they lie in the node's box.
template <int D, typename T>
void leaf_moments(const Parallel& parallel, const TreeLayout& layout, const T* pos, const T* mass, bool shared,
                  const double* period, const int32_t* splits, double* moments) {
  parallel.blocks(layout.sizes[0], 512, [&](int64_t begin, int64_t end) {
    for (int64_t leaf = begin; leaf < end; ++leaf) {
      double* sum = moments + leaf * (D + 1);
      for (int64_t row = splits[leaf]; row < splits[leaf + 1]; ++row) {
        double weight = static_cast<double>(mass[shared ? 0 : row]);
        sum[D] += weight;
        for (int d = 0; d < D; ++d) sum[d] += weight * static_cast<double>(wrap(pos[row * D + d], period[d]));
      }
    }
  });
}

template <int D, typename T>
void node_moments(const Parallel& parallel, const TreeLayout& layout, const T* pos, const T* mass, bool shared,
                  const double* period, const int32_t* splits, T* node_mass, T* node_centre) {
  std::vector<double> moments(static_cast<size_t>(layout.nodes() * (D + 1)), 0.);
  leaf_moments<D>(parallel, layout, pos, mass, shared, period, splits, moments.data());
  for (int plane = 1; plane < layout.planes(); ++plane) {
    const int32_t* split = splits + layout.split_start(plane);
    int64_t below = layout.starts[static_cast<size_t>(plane) - 1], here = layout.starts[static_cast<size_t>(plane)];
    for (int64_t node = 0; node < layout.sizes[static_cast<size_t>(plane)]; ++node)
      for (int64_t child = below + split[node]; child < below + split[node + 1]; ++child)
        for (int c = 0; c <= D; ++c)
          moments[static_cast<size_t>((here + node) * (D + 1) + c)] +=
              moments[static_cast<size_t>(child * (D + 1) + c)];
  }
  for (int64_t node = 0; node < layout.nodes(); ++node) {
    const double* sum = moments.data() + node * (D + 1);
    node_mass[node] = static_cast<T>(sum[D]);
    for (int d = 0; d < D; ++d) node_centre[node * D + d] = sum[D] != 0 ? static_cast<T>(sum[d] / sum[D]) : T{0};
  }
}

ffi::Error node_masses(ffi::ThreadPool pool, ffi::AnyBuffer pos, ffi::AnyBuffer mass, ffi::Buffer<ffi::S32> splits,
                       ffi::AnyBuffer box, ffi::Result<ffi::AnyBuffer> node_mass,
                       ffi::Result<ffi::AnyBuffer> node_centre, ffi::Span<const int64_t> plane_sizes) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    TreeLayout layout(plane_sizes);
    double period[D];
    int64_t masses = static_cast<int64_t>(mass.element_count());
    if (!read_exact(box, D, period) || mass.element_type() != pos.element_type() ||
        (masses != 1 && masses != pos.dimensions()[0]) ||
        static_cast<int64_t>(splits.element_count()) != layout.splits() ||
        static_cast<int64_t>(node_mass->element_count()) != layout.nodes() ||
        static_cast<int64_t>(node_centre->element_count()) != layout.nodes() * D)
      return invalid("node_masses was called with arrays that do not fit together.");
    node_moments<D>(Parallel(pool), layout, pos.typed_data<T>(), mass.typed_data<T>(), masses == 1, period,
                    splits.typed_data(), node_mass->typed_data<T>(), node_centre->typed_data<T>());
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_hierarchy, hierarchy, "plane_sizes", "leaf_size", "fan_out");
JZTREE_HANDLER(jztree_node_masses, node_masses, "plane_sizes");

}  // namespace jztree
