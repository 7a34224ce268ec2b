// The walk of a group of queries, a leaf of their hierarchy, through that of the sources, for sums of kernel_sums.h. By
// one thread, in the order of rows.
//
// A node is opened if it may be within a smoothing length of any query: the largest of the group's, of the node's
// particles, or the mean of both. Distances, kernels and their derivatives are computed in vectors of the positions'
// own precision; products with values are added up in float64, in each lane by itself, so that the order in which they
// are does not depend on threads or on the instruction set.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/cpu/leaf_distances.h"
#include "common/cpu/staged_tree.h"
#include "common/distance_rule.h"
#include "kernel_lanes.h"
#include "kernel_rule.h"

namespace jztree {

// Positions as they were given.
template <int D>
struct GivenPositions {
  const void* data;
  bool narrow;

  double at(int64_t row, int d) const {
    return narrow ? static_cast<double>(static_cast<const float*>(data)[row * D + d])
                  : static_cast<const double*>(data)[row * D + d];
  }
};

// Particles in the positions' own precision, or a wider one T, with what they have of smoothing lengths and values.
template <int D, typename T>
struct KernelProblem {
  GivenPositions<D> source_pos, query_pos;
  int64_t columns, inner, outer;
  int powers;
  bool images;
  KernelProfile<T> profile;
  Scale<D, T> scale;
  StagedTree<D, T> sources, *queries;
  std::unique_ptr<StagedTree<D, T>> others;  // null if the sources are the queries, row by row
  DistanceRule<D, T> rule;
  KernelForm form;
  KernelLengths<D, T> lengths;
  Scratch<T> query_h, source_h;     // scaled and weighted
  Scratch<T> node_h;                // the largest of a node's
  int64_t rows_;                    // of a column of values, with room to read whole blocks
  Scratch<double> value;            // a column after the other
  std::atomic<bool> beyond{false};  // whether any of them is beyond the range of float64

  template <typename From>
  KernelProblem(const Parallel& parallel, const KernelSums<D, From>& in, const double* box)
      : source_pos{in.sources.pos.data, std::is_same<From, float>::value},
        query_pos{in.queries.pos.data, std::is_same<From, float>::value},
        columns(in.columns()),
        inner(in.inner()),
        outer(in.outer()),
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
        rows_(in.sources.num() + lanes),
        value(rows_ * in.value.dims[1]) {
    if (others) queries = others.get();
    stage_lengths(parallel, in.queries.num(), [&](int64_t row) { return lengths.staged_query(row, scale); }, query_h);
    if (lengths.of_source > 0) {
      auto staged = [&](int64_t row) { return lengths.staged_source(row, scale); };
      stage_lengths(parallel, in.sources.num(), staged, source_h);
      cover_nodes(parallel, in.sources.splits);
    }
    if (in.value.type == XLA_FFI_DataType_F32) {
      stage_values(parallel, static_cast<const float*>(in.value.data), in.sources.num(), in.value_powers);
    } else {
      stage_values(parallel, static_cast<const double*>(in.value.data), in.sources.num(), in.value_powers);
    }
  }

  const double* column(int64_t c) { return value.get() + c * rows_; }
  bool wrapped() const { return sources.wrapped() || queries->wrapped(); }

 private:
  template <typename Length>
  static void stage_lengths(const Parallel& parallel, int64_t num, const Length& length, Scratch<T>& out) {
    parallel.blocks(num, 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) out[row] = length(row);
    });
    for (int64_t row = num; row < num + lanes; ++row) out[row] = 1;
  }

  void cover_nodes(const Parallel& parallel, const int32_t* splits) {
    const TreeLayout& layout = sources.layout();
    for (int plane = 0; plane < layout.planes(); ++plane) {
      int64_t here = layout.starts[static_cast<size_t>(plane)];
      const int32_t* split = splits + layout.split_start(plane);
      const T* below = plane > 0 ? node_h.get() + layout.starts[static_cast<size_t>(plane) - 1] : source_h.get();
      parallel.blocks(layout.sizes[static_cast<size_t>(plane)], 512, [&](int64_t begin, int64_t end) {
        for (int64_t node = begin; node < end; ++node) {
          T most = 0;
          for (int64_t i = split[node]; i < split[node + 1]; ++i) most = std::max(most, below[i]);
          node_h[here + node] = most;
        }
      });
    }
  }

  template <typename Value>
  void stage_values(const Parallel& parallel, const Value* given, int64_t num, int64_t shift) {
    const int64_t all = columns * inner;
    const int over = form == KernelForm::scatter ? powers : 0;
    parallel.blocks(rows_, 1 << 12, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t c = 0; c < all; ++c) {
          double one = row < num ? static_cast<double>(given[row * all + c]) : 0;
          if ((over != 0 || shift != 0) && row < num) {
            one = over_powers(one, lengths.source[row], over, static_cast<int>(shift));
            if (!std::isfinite(one)) beyond.store(true, std::memory_order_relaxed);
          }
          value[c * rows_ + row] = one;
        }
    });
  }
};

template <int D, typename T, int Order>
class KernelWalk {
 public:
  KernelWalk(KernelProblem<D, T>& problem, const RadialSum<T>& radial)
      : problem_(problem),
        sources_(problem.sources),
        queries_(*problem.queries),
        radial_(radial),
        columns_(problem.columns),
        inner_(problem.inner),
        outer_(problem.outer) {
    for (int d = 0; d < D; ++d) gap_period_[d] = problem.scale.period[d] * below_one<T>;
  }

  // Adds up for all queries of a leaf.
  void run(int64_t leaf) {
    begin_ = queries_.leaf_row(leaf);
    count_ = queries_.leaf_row(leaf + 1) - begin_;
    if (count_ == 0) return;
    sums_.assign(static_cast<size_t>(count_ * width() * lanes), 0.);
    largest_ = 0;
    for (int64_t i = 0; i < count_; ++i) largest_ = std::max(largest_, problem_.query_h[begin_ + i]);
    for (int d = 0; d < D; ++d) {
      low_[d] = queries_.low[d][leaf];
      high_[d] = queries_.high[d][leaf];
    }
    int top = sources_.layout().planes() - 1;
    open(top, 0, sources_.layout().sizes[static_cast<size_t>(top)]);
  }
  int64_t begin() const { return begin_; }
  int64_t count() const { return count_; }
  int64_t width() const { return columns_ * outer_; }
  // Of the i-th query.
  double sum(int64_t i, int64_t column) const { return sum_of_lanes(sums_.data() + (i * width() + column) * lanes); }

 private:
  using V = Lanes<T>;
  using Wide = Lanes<double>;

  T node_h(int64_t node) { return problem_.lengths.of_source > 0 ? problem_.node_h[node] : T{0}; }

  void open(int plane, int64_t begin, int64_t end) {
    constexpr int64_t block = 2 * lanes;
    int64_t start = sources_.layout().starts[static_cast<size_t>(plane)];
    for (int64_t first = begin; first < end; first += block) {
      T gap2[block];
      int64_t number = std::min(block, end - first);
      node_distances(sources_, low_, high_, gap_period_, start + first, number, gap2);
      for (int64_t i = 0; i < number; ++i) {
        int64_t node = first + i;
        if (sources_.first_row(plane, node) == sources_.first_row(plane, node + 1)) continue;
        if (gap2[i] > kernel_reach2(largest_ + node_h(start + node), problem_.rule)) continue;
        if (plane > 0) {
          open(plane - 1, sources_.first_child(plane, node), sources_.first_child(plane, node + 1));
        } else {
          open_leaf(node);
        }
      }
    }
  }

  void open_leaf(int64_t leaf) {
    T low[D], high[D];
    for (int d = 0; d < D; ++d) low[d] = sources_.low[d][leaf], high[d] = sources_.high[d][leaf];
    bool around = problem_.scale.periodic && wraps_around<D>(low_, high_, low, high, problem_.scale.period);
    if (around || !problem_.images || problem_.wrapped()) look(leaf, around);
  }

  __attribute__((flatten)) void look(int64_t leaf, bool around) {
    for (int64_t block = 0; block < count_; block += lanes) {
      V gaps2{}, of_query;
      for (int d = 0; d < D; ++d) {
        V x, low(sources_.low[d][leaf]), high(sources_.high[d][leaf]);
        load(queries_.x[d] + begin_ + block, x);
        V gap =
            around ? interval_gap<V>(x, x, low, high, V(gap_period_[d])) : larger<V>(larger<V>(low - x, x - high), V{});
        gaps2 = gaps2 + gap * gap;
      }
      load(problem_.query_h.get() + begin_ + block, of_query);
      uint32_t open = lanes_at_most(gaps2 * below_one<T>, kernel_reach2(of_query + V(node_h(leaf)), problem_.rule));
      if (count_ - block < lanes) open &= (1u << (count_ - block)) - 1;
      for (; open != 0; open &= open - 1) look_from(block + __builtin_ctz(open), leaf, around);
    }
  }

  // Of a query and a block of sources.
  struct Pairs {
    int64_t query, first;
    V apart[D], inverse, q2;  // inverse: of the smoothing length
  };

  // Apart, or it is compiled into its callers as a whole.
  __attribute__((noinline, flatten)) void look_from(int64_t i, int64_t leaf, bool around) {
    Pairs pairs;
    pairs.query = begin_ + i;
    const int64_t first = sources_.leaf_row(leaf), end = sources_.leaf_row(leaf + 1);
    const bool own = problem_.form == KernelForm::gather;
    const T of_query = problem_.query_h[pairs.query];
    if (own) pairs.inverse = V(1 / of_query);
    double* sums = sums_.data() + i * width() * lanes;
    const bool rests = sources_.has_rests(leaf) || queries_.rest[0];
    for (pairs.first = first; pairs.first < end; pairs.first += lanes) {
      V distance2{};
      for (int d = 0; d < D; ++d) {
        V x, at(queries_.x[d][pairs.query]);
        load(sources_.x[d] + pairs.first, x);
        pairs.apart[d] = at - x;
        if (around)
          pairs.apart[d] = wrapped_difference<V>(at, x, V(problem_.scale.period[d]), V(problem_.scale.period_rest[d]));
        if (rests) add_rests(pairs, d);
        distance2 = distance2 + pairs.apart[d] * pairs.apart[d];
      }
      if (!own) {
        V of_source;
        load(problem_.source_h.get() + pairs.first, of_source);
        pairs.inverse = reciprocal(of_source + V(of_query));
      }
      pairs.q2 = distance2 * pairs.inverse * pairs.inverse;
      pairs.q2 = choose(places<T>() < V(static_cast<T>(end - pairs.first)), pairs.q2, V(T{4}));
      uint32_t within = lanes_at_most(pairs.q2, V(T{1}));
      if (problem_.profile.jumps()) within = decide(pairs, within, end - pairs.first);
      if (within != 0) add(pairs, of_query, sums);
    }
  }

  // In this order: next to a face, the first sum is exact.
  void add_rests(Pairs& pairs, int d) const {
    V x{};
    if (sources_.rest[d]) load(sources_.rest[d] + pairs.first, x);
    const T at = queries_.rest[d] ? queries_.rest[d][pairs.query] : T{0};
    pairs.apart[d] = (pairs.apart[d] + V(at)) - x;
  }

  // Which are within, decided as for links where this precision does not say. Those have a q of at most 1 then.
  // number: of sources of this leaf, of which there may be fewer than lanes.
  uint32_t decide(Pairs& pairs, uint32_t within, int64_t number) const {
    const UnitBounds<V> bounds(pairs.inverse, problem_.rule);
    uint32_t possibly = lanes_at_most(pairs.q2, bounds.possibly), surely = lanes_at_most(pairs.q2, bounds.surely);
    if (possibly == surely) return within;
    T q2[lanes];
    store(pairs.q2, q2);
    const uint32_t used = number >= lanes ? 0xffff : (1u << number) - 1;
    for (uint32_t left = possibly & ~surely & used; left != 0; left &= left - 1) {
      int lane = __builtin_ctz(left);
      q2[lane] = is_within(pairs.query, pairs.first + lane) ? std::min(q2[lane], T{1}) : T{4};
    }
    load(q2, pairs.q2);
    return lanes_at_most(pairs.q2, V(T{1}));
  }

  JZTREE_APART bool is_within(int64_t query, int64_t source) const {
    T a[D], b[D];
    for (int d = 0; d < D; ++d) {
      a[d] = static_cast<T>(problem_.query_pos.at(query, d));
      b[d] = static_cast<T>(problem_.source_pos.at(source, d));
    }
    return problem_.rule.is_within_exactly(a, b, ExactRadius(problem_.lengths.of_pair(query, source)));
  }

  // The derivatives of the kernel, times the values.
  void add(const Pairs& pairs, T of_query, double* sums) {
    const V one(T{1});
    const auto beyond = one < pairs.q2;
    V q2 = choose(beyond, one, pairs.q2), q = square_root(q2), unit = choose(beyond, V{}, one);
    Wide tensor[power(Order)];
    if constexpr (Order == 0) {
      widen(radial_.template operator()<0>(problem_.profile, q, q2) * unit, tensor[0]);
    } else {
      V u[D];
      for (int d = 0; d < D; ++d) u[d] = choose(beyond, V{}, pairs.apart[d] * pairs.inverse);
      if constexpr (Order == 1) {
        V radial = radial_.template operator()<1>(problem_.profile, q, q2) * unit;
        for (int d = 0; d < D; ++d) widen(radial * u[d], tensor[d]);
      } else {
        V first = problem_.profile.template part<1>(q, q2) * unit;
        // At no distance the second is 0 times what has no direction.
        V second = problem_.profile.template part<2>(q, q2) * unit;
        second = choose(V{} < q2, divided(second, choose(V{} < q2, q2, one)), V{});
#pragma GCC unroll 1
        for (int d = 0; d < D; ++d)
#pragma GCC unroll 1
          for (int e = 0; e < D; ++e) {
            V component = second * u[d] * u[e];
            widen(d == e ? component + first : component, tensor[d * D + e]);
          }
      }
    }
    if (problem_.form == KernelForm::mean)
      take_ratio(pairs.inverse * V(of_query * 2), problem_.powers, tensor, power(Order));
    if (problem_.images) weigh_by_images(pairs, tensor);
    multiply(pairs.first, tensor, sums);
  }

  static constexpr int power(int order) { return order == 0 ? 1 : order == 1 ? D : D * D; }

  // The powers of the query's own smoothing length, which are for all, have too much by its ratio to the mean. In
  // float64, because that of two very different lengths has powers far below the range of float32.
  static void take_ratio(const V& ratio, int powers, Wide* tensor, int count) {
    Wide wide, all(1);
    widen(ratio, wide);
    for (int i = 0; i < powers; ++i) all = all * wide;
    for (int i = 0; i < count; ++i) tensor[i] = tensor[i] * all;
  }

  // The last index is over outward components.
  JZTREE_APART void weigh_by_images(const Pairs& pairs, Wide* tensor) const {
    for (int d = 0; d < D; ++d) {
      double number[lanes] = {};
      T apart[lanes], q2[lanes];
      store(pairs.apart[d], apart);
      store(pairs.q2, q2);
      const double period = problem_.scale.raw_period[d];
      for (int lane = 0; lane < lanes && period > 0; ++lane) {
        if (q2[lane] > 1) continue;
        double straight = problem_.query_pos.at(pairs.query, d) - problem_.source_pos.at(pairs.first + lane, d);
        number[lane] = std::nearbyint((straight - static_cast<double>(apart[lane] * problem_.scale.inverse)) / period);
      }
      Wide weight;
      load(number, weight);
      for (int i = d; i < power(Order); i += D) tensor[i] = tensor[i] * weight;
    }
  }

  void multiply(int64_t first, const Wide* tensor, double* sums) {
    const bool beyond = problem_.beyond.load(std::memory_order_relaxed);
    for (int64_t c = 0; c < columns_; ++c)
      for (int64_t out = 0; out < outer_; ++out, sums += lanes) {
        Wide sum, value;
        load(sums, sum);
        for (int64_t in = 0; in < inner_; ++in) {
          load(problem_.column(c * inner_ + in) + first, value);
          // What is out of reach, in a block with others that are not, has no part in them, however large it is.
          if (beyond) value = choose(tensor[in * outer_ + out] == Wide{}, Wide{}, value);
          sum = sum + value * tensor[in * outer_ + out];
        }
        store(sum, sums);
      }
  }

  KernelProblem<D, T>& problem_;
  const StagedTree<D, T>&sources_, &queries_;
  const RadialSum<T> radial_;
  const int64_t columns_, inner_, outer_;
  T gap_period_[D];
  std::vector<double> sums_;  // of each query, each column, each lane
  // The group at work.
  int64_t begin_ = 0, count_ = 0;
  T low_[D], high_[D], largest_ = 0;
};

}  // namespace jztree
