// The input that all threads of a kernel sum share: both sets of particles, their smoothing lengths, and values.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <type_traits>
#include <vector>

#include "common/cpu/node_values.h"
#include "common/cpu/staged_tree.h"
#include "common/distance_rule.h"
#include "kernel_rule.h"

namespace jztree {

// Positions before scaling and wrapping.
template <int D>
struct GivenPositions {
  const void* data;
  bool narrow;

  double at(int64_t row, int d) const {
    return narrow ? static_cast<double>(static_cast<const float*>(data)[row * D + d])
                  : static_cast<const double*>(data)[row * D + d];
  }
};

// Particles in the positions' precision or a wider one, T, with their smoothing lengths and values.
template <int D, typename T>
struct KernelProblem {
  GivenPositions<D> source_pos, query_pos;
  int64_t columns, inner, outer;
  int dims, powers;  // dims: of the input positions
  bool images;
  KernelProfile<T> profile;
  Scale<D, T> scale;
  StagedTree<D, T> sources, *queries;
  std::unique_ptr<StagedTree<D, T>> others;  // null if the sources are the queries, row by row
  DistanceRule<D, T> rule;
  KernelForm form;
  KernelLengths<D, T> lengths;
  Scratch<T> query_h, source_h;     // scaled and weighted
  Scratch<T> node_h, node_least_h;  // the largest and the smallest of the sources of a node
  int64_t rows_;                    // length of a column of values, padded to whole blocks
  Scratch<double> value;            // column by column
  std::atomic<bool> beyond{false};  // whether any sum is out of range in float64
  bool adds_nodes;                  // whether the kernel has the same value for all sources within reach

  template <typename From>
  KernelProblem(const Parallel& parallel, const KernelSums<D, From>& in, const double* box)
      : source_pos{in.sources.pos.data, std::is_same<From, float>::value},
        query_pos{in.queries.pos.data, std::is_same<From, float>::value},
        columns(in.columns()),
        inner(in.inner()),
        outer(in.outer()),
        dims(in.dims),
        powers(in.powers()),
        images(in.images),
        profile(in.shape, in.profile),
        scale(box, open_span(box, in.sources, in.queries).template for_scale<T>()),
        sources(parallel, in.sources, scale, true),
        queries(&sources),
        others(in.self ? nullptr : std::make_unique<StagedTree<D, T>>(parallel, in.queries, scale, true)),
        rule(rule_of_wrapped<From>(
            DistanceRule<D, T>(sources.wrapped() || (others && others->wrapped()), false, scale))),
        form(static_cast<KernelForm>(in.form)),
        lengths(in),
        query_h(in.queries.num() + lanes),
        source_h(in.sources.num() + lanes),
        node_h(in.sources.layout.nodes()),
        node_least_h(in.sources.layout.nodes()),
        rows_(in.sources.num() + lanes),
        value(rows_ * in.value.dims[1]) {
    if (others) queries = others.get();
    stage_lengths(parallel, in.queries.num(), [&](int64_t row) { return lengths.staged_query(row, scale); }, query_h);
    if (lengths.of_source > 0) {
      auto staged = [&](int64_t row) { return lengths.staged_source(row, scale); };
      stage_lengths(parallel, in.sources.num(), staged, source_h);
      auto join = [&](auto better, T worst, Scratch<T>& joined) {
        join_nodes(parallel, in.sources, source_h.get(), joined.get(), [=](auto parts, int64_t begin, int64_t end) {
          return std::accumulate(parts + begin, parts + end, worst, better);
        });
      };
      join([](T a, T b) { return std::max(a, b); }, T{0}, node_h);
      join([](T a, T b) { return std::min(a, b); }, std::numeric_limits<T>::infinity(), node_least_h);
    }
    if (in.value.type == XLA_FFI_DataType_F32) {
      stage_values(parallel, static_cast<const float*>(in.value.data), in.sources.num(), in.value_powers);
    } else {
      stage_values(parallel, static_cast<const double*>(in.value.data), in.sources.num(), in.value_powers);
    }
    adds_nodes = in.order() == 0 && profile.shape == KernelShape::top_hat &&
                 (form != KernelForm::mean || has_one_length(in.sources.num()));
    const bool places = find_places(parallel);
    if (adds_nodes || places) sum_nodes(parallel, in.sources);
  }

  const double* column(int64_t c) { return value.get() + c * rows_; }
  int64_t column_stride() const { return rows_; }
  bool wrapped() const { return sources.wrapped() || queries->wrapped(); }

  // Whether the sources of a node are at one place and have one length, so that they share the value of the kernel.
  bool is_one_place(int64_t node) const { return one_place_[static_cast<size_t>(node)] != 0; }
  // Whether the sums of a node are finite. If they overflow, pairs must be added one by one: the kernel may make each
  // value small.
  bool is_summed(int64_t node) const { return summed_[static_cast<size_t>(node)] != 0; }
  // Whether queries in rows [first, end) are at one place and have one length, if the query's length counts. Then they
  // share their sums.
  bool queries_are_alike(int64_t first, int64_t end) const {
    int64_t row = first + 1;
    while (row < end && are_alike(query_pos, lengths.of_query, lengths.query, first, row)) ++row;
    return row >= end;
  }
  double node_sum(int64_t node, int64_t c) const {
    return node_sums_[static_cast<size_t>(c * sources.layout().nodes() + node)];
  }

 private:
  template <typename Length>
  static void stage_lengths(const Parallel& parallel, int64_t num, const Length& length, Scratch<T>& out) {
    parallel.blocks(num, 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) out[row] = length(row);
    });
    for (int64_t row = num; row < num + lanes; ++row) out[row] = 1;
  }

  bool has_one_length(int64_t num) {
    return std::adjacent_find(source_h.get(), source_h.get() + num, std::not_equal_to<T>()) == source_h.get() + num;
  }

  static bool are_alike(const GivenPositions<D>& pos, T weight, const RowLengths& h, int64_t row, int64_t second) {
    for (int d = 0; d < D; ++d)
      if (pos.at(row, d) != pos.at(second, d)) return false;
    return weight == 0 || h[row] == h[second];
  }
  bool are_alike(int64_t row, int64_t second) const {
    return are_alike(source_pos, lengths.of_source, lengths.source, row, second);
  }

  // Fill one_place_. Returns whether there is any such node.
  bool find_places(const Parallel& parallel) {
    const TreeLayout& layout = sources.layout();
    one_place_.assign(static_cast<size_t>(layout.nodes()), 0);
    std::atomic<bool> found{false};
    for (int plane = 0; plane < layout.planes(); ++plane) {
      uint8_t* of_plane = one_place_.data() + layout.starts[static_cast<size_t>(plane)];
      parallel.blocks(layout.sizes[static_cast<size_t>(plane)], 512, [&](int64_t begin, int64_t end) {
        for (int64_t node = begin; node < end; ++node) {
          const bool empty = sources.first_row(plane, node) == sources.first_row(plane, node + 1);
          of_plane[node] = !empty && (plane > 0 ? is_place_of_nodes(plane, node) : is_place_of_rows(node));
          if (of_plane[node]) found.store(true, std::memory_order_relaxed);
        }
      });
    }
    return found.load();
  }

  bool is_place_of_rows(int64_t leaf) const {
    const int64_t first = sources.leaf_row(leaf), end = sources.leaf_row(leaf + 1);
    int64_t row = first + 1;
    while (row < end && are_alike(first, row)) ++row;
    return row == end;
  }

  bool is_place_of_nodes(int plane, int64_t node) const {
    const int64_t below = sources.layout().starts[static_cast<size_t>(plane) - 1];
    for (int64_t child = sources.first_child(plane, node); child < sources.first_child(plane, node + 1); ++child) {
      const int64_t row = sources.first_row(plane - 1, child);
      if (row == sources.first_row(plane - 1, child + 1)) continue;
      if (!one_place_[static_cast<size_t>(below + child)] || !are_alike(sources.first_row(plane, node), row))
        return false;
    }
    return true;
  }

  template <typename From>
  void sum_nodes(const Parallel& parallel, const Tree<D, From>& tree) {
    const int64_t nodes = tree.layout.nodes(), all = columns * inner;
    node_sums_.resize(static_cast<size_t>(nodes * all));
    for (int64_t c = 0; c < all; ++c)
      join_nodes(parallel, tree, column(c), node_sums_.data() + c * nodes, AddedInOrder{});
    summed_.resize(static_cast<size_t>(nodes));
    parallel.blocks(nodes, 512, [&](int64_t begin, int64_t end) {
      for (int64_t node = begin; node < end; ++node) {
        bool finite = true;
        for (int64_t c = 0; c < all; ++c) finite &= std::isfinite(node_sum(node, c));
        summed_[static_cast<size_t>(node)] = finite;
        one_place_[static_cast<size_t>(node)] &= finite;
      }
    });
  }

  template <typename Value>
  void stage_values(const Parallel& parallel, const Value* raw, int64_t num, int64_t shift) {
    const int64_t all = columns * inner;
    const int over = form == KernelForm::scatter ? powers : 0;
    parallel.blocks(rows_, 1 << 12, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t c = 0; c < all; ++c) {
          double number = row < num ? static_cast<double>(raw[row * all + c]) : 0;
          if ((over != 0 || shift != 0) && row < num) {
            number = over_powers(number, lengths.source[row], over, static_cast<int>(shift));
            if (!std::isfinite(number)) beyond.store(true, std::memory_order_relaxed);
          }
          value[c * rows_ + row] = number;
        }
    });
  }

  // [node]
  std::vector<uint8_t> one_place_, summed_;
  std::vector<double> node_sums_;  // column by column
};

}  // namespace jztree
