// The walk of a group of queries, a leaf of their hierarchy, through the hierarchy of the sources, for the sums of
// kernel_sums.h. It runs on one thread, in the order of rows.
//
// A node is opened if it may be within the smoothing length of a query. Depending on the form, this is the largest
// smoothing length of the group, that of the node's particles, or the mean of both. The sums of a node's values are
// added as a whole in two cases: if the node is surely inside every query's top hat, or if its particles are at one
// place with one smoothing length. Distances, kernels and their derivatives are computed in vectors, in the precision
// of the positions. Products with values are summed in float64, separately in each lane, so their order does not depend
// on threads or on the instruction set.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/cpu/node_distances.h"
#include "kernel_lanes.h"
#include "kernel_problem.h"

namespace jztree {

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
        outer_(problem.outer),
        place_(static_cast<size_t>(columns_ * inner_ * lanes)) {
    for (int d = 0; d < D; ++d) gap_period_[d] = problem.scale.period[d] * below_one<T>;
  }

  // Compute the sums of a leaf's queries.
  void run(int64_t leaf) {
    const int64_t last = begin_, end = queries_.leaf_row(leaf + 1);
    const bool were_alike = alike_;
    begin_ = queries_.leaf_row(leaf);
    all_ = end - begin_;
    alike_ = all_ > 0 && problem_.queries_are_alike(begin_, end);
    if (all_ == 0 || (alike_ && were_alike && problem_.queries_are_alike(last, end))) return;
    count_ = alike_ ? 1 : all_;
    sums_.assign(static_cast<size_t>(count_ * width() * lanes), 0.);
    common_.assign(static_cast<size_t>(columns_), 0.);
    const T* h = problem_.query_h.get() + begin_;
    largest_ = *std::max_element(h, h + count_);
    least_ = *std::min_element(h, h + count_);
    for (int d = 0; d < D; ++d) {
      low_[d] = queries_.low[d][leaf];
      high_[d] = queries_.high[d][leaf];
    }
    int top = sources_.layout().planes() - 1;
    open(top, 0, sources_.layout().sizes[static_cast<size_t>(top)]);
  }
  int64_t begin() const { return begin_; }
  int64_t count() const { return all_; }
  int64_t width() const { return columns_ * outer_; }
  // The sum of the i-th query.
  double sum(int64_t i, int64_t column) const {
    if (alike_) i = 0;
    const double query_sum = sum_of_lanes(sums_.data() + (i * width() + column) * lanes);
    return problem_.adds_nodes ? query_sum + common_[static_cast<size_t>(column)] * common_value(i) : query_sum;
  }

 private:
  using V = Lanes<T>;
  using Wide = Lanes<double>;

  T node_h(int64_t node) { return problem_.lengths.of_source > 0 ? problem_.node_h[node] : T{0}; }
  T node_least_h(int64_t node) { return problem_.lengths.of_source > 0 ? problem_.node_least_h[node] : T{0}; }

  // The value of the kernel for sources of whole nodes, at the i-th query.
  double common_value(int64_t i) const {
    double value = static_cast<double>(radial_.c0);
    if (problem_.form != KernelForm::mean) return value;
    const T of_query = problem_.query_h[begin_ + i], ratio = of_query * 2 / (of_query + problem_.source_h[0]);
    for (int power = 0; power < problem_.powers; ++power) value *= static_cast<double>(ratio);
    return value;
  }

  void open(int plane, int64_t begin, int64_t end) {
    constexpr int64_t block = 2 * lanes;
    int64_t start = sources_.layout().starts[static_cast<size_t>(plane)];
    for (int64_t first = begin; first < end; first += block) {
      T gap2[block], reach2[block];
      int64_t number = std::min(block, end - first);
      node_distances(sources_, low_, high_, gap_period_, start + first, number, gap2);
      if (problem_.adds_nodes)
        node_reaches(sources_, low_, high_, problem_.scale.period, start + first, number, reach2);
      for (int64_t i = 0; i < number; ++i) {
        int64_t node = first + i, flat = start + node;
        int64_t row = sources_.first_row(plane, node), behind = sources_.first_row(plane, node + 1);
        if (row == behind || gap2[i] > possibly_within2(largest_ + node_h(flat), problem_.rule)) continue;
        if (problem_.adds_nodes && problem_.is_summed(flat) &&
            reach2[i] <= surely_within2(least_ + node_least_h(flat), problem_.rule)) {
          for (int64_t c = 0; c < columns_; ++c) common_[static_cast<size_t>(c)] += problem_.node_sum(flat, c);
        } else if (problem_.is_one_place(flat)) {
          open_place(flat, row);
        } else if (plane > 0) {
          open(plane - 1, sources_.first_child(plane, node), sources_.first_child(plane, node + 1));
        } else {
          values_ = problem_.column(0) + row;
          stride_ = problem_.column_stride();
          has_rests_ = sources_.has_rests(node) || queries_.rest[0];
          open_rows(flat, row, behind);
        }
      }
    }
  }

  // The first row of a node at one place represents all of its rows.
  void open_place(int64_t node, int64_t row) {
    for (int64_t c = 0; c < columns_ * inner_; ++c) place_[static_cast<size_t>(c * lanes)] = problem_.node_sum(node, c);
    values_ = place_.data();
    stride_ = lanes;
    has_rests_ = sources_.rest[0] || queries_.rest[0];
    open_rows(node, row, row + 1);
  }

  void open_rows(int64_t node, int64_t first, int64_t end) {
    first_ = first;
    T low[D], high[D];
    for (int d = 0; d < D; ++d) low[d] = sources_.low[d][node], high[d] = sources_.high[d][node];
    bool around = problem_.scale.periodic && wraps_around<D>(low_, high_, low, high, problem_.scale.period);
    if (around || !problem_.images || problem_.wrapped()) look(node, first, end, around);
  }

  __attribute__((flatten)) void look(int64_t node, int64_t first, int64_t end, bool around) {
    for (int64_t block = 0; block < count_; block += lanes) {
      V gaps2{}, of_query;
      for (int d = 0; d < D; ++d) {
        V x, low(sources_.low[d][node]), high(sources_.high[d][node]);
        load(queries_.x[d] + begin_ + block, x);
        V gap =
            around ? interval_gap<V>(x, x, low, high, V(gap_period_[d])) : larger<V>(larger<V>(low - x, x - high), V{});
        gaps2 = gaps2 + gap * gap;
      }
      load(problem_.query_h.get() + begin_ + block, of_query);
      uint32_t open = lanes_at_most(gaps2 * below_one<T>, possibly_within2(of_query + V(node_h(node)), problem_.rule));
      if (count_ - block < lanes) open &= (1u << (count_ - block)) - 1;
      for (; open != 0; open &= open - 1) look_from(block + __builtin_ctz(open), first, end, around);
    }
  }

  // Pairs of a query and a block of sources.
  struct Pairs {
    int64_t query, first;
    V apart[D], inverse, q2;  // inverse: of the smoothing length
  };

  // Not inlined, because each caller would repeat the code.
  __attribute__((noinline, flatten)) void look_from(int64_t i, int64_t first, int64_t end, bool around) {
    Pairs pairs;
    pairs.query = begin_ + i;
    const bool has_rests = has_rests_;
    const bool gathers = problem_.form == KernelForm::gather;
    const T of_query = problem_.query_h[pairs.query];
    if (gathers) pairs.inverse = V(1 / of_query);
    double* sums = sums_.data() + i * width() * lanes;
    for (pairs.first = first; pairs.first < end; pairs.first += lanes) {
      V distance2{};
      for (int d = 0; d < D; ++d) {
        V x, at(queries_.x[d][pairs.query]);
        load(sources_.x[d] + pairs.first, x);
        pairs.apart[d] = at - x;
        if (around)
          pairs.apart[d] = wrapped_difference<V>(at, x, V(problem_.scale.period[d]), V(problem_.scale.period_rest[d]));
        if (has_rests) add_rests(pairs, d);
        distance2 = distance2 + pairs.apart[d] * pairs.apart[d];
      }
      if (!gathers) {
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

  // This order of operations makes the first sum exact next to a face.
  void add_rests(Pairs& pairs, int d) const {
    V x{};
    if (sources_.rest[d]) load(sources_.rest[d] + pairs.first, x);
    const T rest = queries_.rest[d] ? queries_.rest[d][pairs.query] : T{0};
    pairs.apart[d] = (pairs.apart[d] + V(rest)) - x;
  }

  // Return the sources within reach, and limit their q to at most 1. If the precision of the positions cannot decide,
  // float64 decides, like for links. number: of sources from the first one to the end of the leaf; it may be smaller
  // than the number of lanes.
  uint32_t decide(Pairs& pairs, uint32_t within, int64_t number) const {
    const UnitBounds<V> bounds(pairs.inverse, problem_.rule);
    uint32_t possibly = lanes_at_most(pairs.q2, bounds.possibly), surely = lanes_at_most(pairs.q2, bounds.surely);
    if (possibly == surely) return within;
    T q2[lanes];
    store(pairs.q2, q2);
    const uint32_t used = number >= lanes ? 0xffff : (1u << number) - 1;
    for (uint32_t unsure = possibly & ~surely & used; unsure != 0; unsure &= unsure - 1) {
      int lane = __builtin_ctz(unsure);
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

  // Add the derivatives of the kernel, times the values.
  void add(const Pairs& pairs, T of_query, double* sums) {
    const V one(T{1});
    const auto outside = one < pairs.q2;
    V q2 = choose(outside, one, pairs.q2), q = square_root(q2), unit = choose(outside, V{}, one);
    Wide tensor[power(Order)];
    if constexpr (Order == 0) {
      widen(radial_.template operator()<0>(problem_.profile, q, q2) * unit, tensor[0]);
    } else {
      V u[D];
      for (int d = 0; d < D; ++d) u[d] = choose(outside, V{}, pairs.apart[d] * pairs.inverse);
      if constexpr (Order == 1) {
        V radial = radial_.template operator()<1>(problem_.profile, q, q2) * unit;
        for (int d = 0; d < D; ++d) widen(radial * u[d], tensor[d]);
      } else {
        V first = problem_.profile.template part<1>(q, q2) * unit;
        // At distance 0, the second term is 0 times an undefined direction.
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

  // The kernel multiplies all sums of a query by powers of the query's length. With a mean length, these powers are
  // wrong by the ratio of both lengths; this corrects them. It computes in float64, because powers of the ratio of two
  // very different lengths are far below the range of float32.
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
      T offset[lanes], q2[lanes];
      store(pairs.apart[d], offset);
      store(pairs.q2, q2);
      const double period = problem_.scale.raw_period[d];
      for (int lane = 0; lane < lanes && period > 0; ++lane) {
        if (q2[lane] > 1) continue;
        double straight = problem_.query_pos.at(pairs.query, d) - problem_.source_pos.at(pairs.first + lane, d);
        number[lane] = std::nearbyint((straight - static_cast<double>(offset[lane] * problem_.scale.inverse)) / period);
      }
      Wide weight;
      load(number, weight);
      for (int i = d; i < power(Order); i += D) tensor[i] = tensor[i] * weight;
    }
  }

  // The position of a component of values or sums in the tensor. Positions may have been padded to D dimensions.
  int64_t place_of(int64_t component) const {
    if (Order < 2 || D < max_dims) return component;
    return component / problem_.dims * D + component % problem_.dims;
  }

  void multiply(int64_t first, const Wide* tensor, double* sums) {
    const bool overflowed = problem_.beyond.load(std::memory_order_relaxed);
    for (int64_t c = 0; c < columns_; ++c)
      for (int64_t out = 0; out < outer_; ++out, sums += lanes) {
        Wide sum, value;
        load(sums, sum);
        for (int64_t in = 0; in < inner_; ++in) {
          load(values_ + (c * inner_ + in) * stride_ + (first - first_), value);
          // A source out of reach, in a block with sources within reach, must not contribute, however large its value
          // is.
          const Wide& factor = tensor[place_of(in * outer_ + out)];
          if (overflowed) value = choose(factor == Wide{}, Wide{}, value);
          sum = sum + value * factor;
        }
        store(sum, sums);
      }
  }

  KernelProblem<D, T>& problem_;
  const StagedTree<D, T>&sources_, &queries_;
  const RadialSum<T> radial_;
  const int64_t columns_, inner_, outer_;
  T gap_period_[D];
  std::vector<double> sums_;   // [query, column, lane]
  std::vector<double> place_;  // sums of a node at one place, for each column, in the first lane
  // The current group.
  int64_t begin_ = 0, all_ = 0,
          count_ = 0;   // all_: number of queries in the leaf; count_: of queries with separate sums
  bool alike_ = false;  // whether all queries have the sums of the first one
  T low_[D], high_[D];
  T largest_ = 0, least_ = 0;   // smoothing lengths
  std::vector<double> common_;  // sums of whole nodes, for each column
  // The current sources.
  int64_t first_ = 0;               // first row
  const double* values_ = nullptr;  // of that row
  int64_t stride_ = 0;              // from one column of values to the next
  bool has_rests_ = false;          // whether any pair has rests
};

}  // namespace jztree
