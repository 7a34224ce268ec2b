// The tree of a group: its particles in the z-order of the group alone, and planes of nodes. So the tree, and every
// result, depends only on the particles of the group and their order.
//
// A window of consecutive particles contributes one boundary between nodes: the row whose key differs from the row
// before in the most significant bit. Windows of boundaries give the nodes of the next plane. So nodes follow cells.
//
// Places are in a unit that makes the extent about 1, and in periodic dimensions relative to the first particle; masses
// are in a unit that makes the largest about 1. The units are powers of two, so this changes no digit. If the group is
// wider than half the box, other images of some pairs are nearer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "common/cpu/huge_vector.h"
#include "common/cpu/parallel.h"
#include "common/morton.h"
#include "gravity_node.h"
#include "zorder/cache_sort.h"

namespace jztree {

constexpr int64_t run_capacity = 176;  // the particles of a node of the plane above the leaves are fewer
constexpr int64_t rows_of_a_thread = 1 << 15;
static_assert((2 * leaf_window - 1) * (2 * fan_window - 1) <= run_capacity);

// Nearby particles that share a walk.
struct Run {
  int64_t begin, end;
};

// A loop on all threads, or on this one if there is little to do.
template <typename Work>
void loop(const Parallel* parallel, int64_t items, int64_t grain, const Work& work) {
  if (parallel && items > grain) return parallel->blocks(items, grain, work);
  work(int64_t{0}, items);
}

template <int D>
class GroupTree {
 public:
  HugeVector<int32_t> order;         // the row in the group of each particle in z-order
  HugeVector<double> place, weight;  // of particles in z-order
  double length_factor = 1, mass_factor = 1, softening = 0;
  bool has_negative = false;
  double wide_period[D] = {};  // the period of dimensions in which some pairs have nearer images than their places
  HugeVector<GravityNode<D>> nodes;
  HugeVector<NodeMoments<D>> moments;
  std::vector<int64_t> planes;  // the first node of each plane, and the end; no planes without a tree

  bool is_wide() const {
    return std::any_of(wide_period, wide_period + D, [](double period) { return period > 0; });
  }
  int64_t rows() const { return static_cast<int64_t>(order.size()); }
  int64_t runs() const { return planes.empty() ? (rows() + few - 1) / few : planes[2] - planes[1]; }
  Run run(int64_t i) const {
    if (planes.empty()) return {i * few, std::min(rows(), (i + 1) * few)};
    const GravityNode<D>& node = nodes[at(planes[1] + i)];
    return {node.begin, node.end};
  }

  // length: the softening. extent: of the images around the particles, or 0. parallel: null for one thread.
  template <typename T>
  void build(const GroupParticles<D, T>& particles, int64_t begin, int64_t end, double length, bool wants_tree,
             double extent, const Parallel* parallel) {
    const int64_t n = end - begin;
    Source<T> source{particles, begin};
    particles.place_of(begin, source.first);
    order.resize(at(n));
    place.resize(at(n * D));
    weight.resize(at(n));
    planes.clear();
    measure(source, n, std::max(extent, least_extent * length), parallel);
    softening = length * length_factor;
    if (wants_tree) {
      sort(source, parallel);
    } else {
      std::iota(order.begin(), order.end(), 0);
    }
    loop(parallel, n, rows_of_a_thread, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        source.take(order[at(i)], length_factor, &place[at(i * D)]);
        weight[at(i)] = particles.mass_of(begin + order[at(i)]) * mass_factor;
      }
    });
    if (wants_tree) add_planes(parallel);
  }

 private:
  static constexpr int64_t few = 32;
  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  // The particles of the group, in periodic dimensions relative to the first one.
  template <typename T>
  struct Source {
    const GroupParticles<D, T>& particles;
    int64_t begin;
    double first[D] = {};

    void take(int64_t i, double factor, double* to) const {
      particles.place_of(begin + i, to);
      for (int d = 0; d < D; ++d) {
        if (particles.period[d] > 0) to[d] = nearest_difference(to[d], first[d], particles.period[d]);
        to[d] *= factor;
      }
    }
  };

  struct Extremes {
    double lower[D], upper[D], mass = 0;
    bool has_negative = false;

    Extremes() {
      std::fill_n(lower, D, std::numeric_limits<double>::infinity());
      std::fill_n(upper, D, -std::numeric_limits<double>::infinity());
    }
    void include(const double* low, const double* high, double magnitude, bool negative) {
      for (int d = 0; d < D; ++d) lower[d] = std::min(lower[d], low[d]), upper[d] = std::max(upper[d], high[d]);
      mass = std::max(mass, magnitude);
      has_negative |= negative;
    }
  };

  // Find the units, and bounds in these units.
  template <typename T>
  void measure(const Source<T>& source, int64_t n, double extent, const Parallel* parallel) {
    std::vector<Extremes> of_blocks(at((n + rows_of_a_thread - 1) / rows_of_a_thread));
    loop(parallel, static_cast<int64_t>(of_blocks.size()), 1, [&](int64_t from_block, int64_t to_block) {
      for (int64_t block = from_block; block < to_block; ++block) {
        Extremes all;
        for (int64_t i = block * rows_of_a_thread; i < std::min(n, (block + 1) * rows_of_a_thread); ++i) {
          double x[D];
          source.take(i, 1, x);
          const double mass = source.particles.mass_of(source.begin + i);
          all.include(x, x, std::fabs(mass), mass < 0);
        }
        of_blocks[at(block)] = all;
      }
    });
    Extremes all;
    for (const Extremes& block : of_blocks) all.include(block.lower, block.upper, block.mass, block.has_negative);
    has_negative = all.has_negative;
    for (int d = 0; d < D; ++d) extent = std::max(extent, all.upper[d] - all.lower[d]);
    length_factor = factor_to_one(extent);
    mass_factor = factor_to_one(all.mass);
    for (int d = 0; d < D; ++d) {
      const double period = source.particles.period[d];
      wide_period[d] = 2 * (all.upper[d] - all.lower[d]) > period ? period * length_factor : 0;
      lower_[d] = all.lower[d] * length_factor, upper_[d] = all.upper[d] * length_factor;
    }
  }

  // Find the order of keys of two words, and the cuts.
  template <typename T>
  void sort(const Source<T>& source, const Parallel* parallel) {
    const int64_t n = rows();
    const double open[D] = {};
    const KeyGrid<D> grid(KeyShape<D>{D}, lower_, upper_, open);
    const auto key_of = [&](int64_t i) {
      double x[D];
      source.take(i, length_factor, x);
      return Morton<D>::key(grid, x);
    };
    CacheSort sorter;
    CacheSort::Item* items = sorter.items(n);
    loop(parallel, n, rows_of_a_thread, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        double x[D];
        source.take(i, length_factor, x);
        items[i] = {Morton<D>::high(grid, x), static_cast<uint32_t>(i)};
      }
    });
    bool one_word = true;
    sorter.sort(n, false, [&](uint32_t row) {
      one_word = false;
      return key_of(row).low;
    });
    cuts_.resize(at(n));
    loop(parallel, n, rows_of_a_thread, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        order[at(i)] = static_cast<int32_t>(items[i].index);
        const int cut = i == 0     ? 128
                        : one_word ? 128 - leading_zeros(items[i].key ^ items[i - 1].key)
                                   : highest_difference(key_of(items[i].index), key_of(items[i - 1].index));
        cuts_[at(i)] = static_cast<uint8_t>(cut);
      }
    });
  }

  // The boundary in each window: the candidate with the largest cut, the first of several.
  template <typename Row>
  HugeVector<int64_t> boundaries(int64_t items, int64_t window, const Row& row, const Parallel* parallel) const {
    HugeVector<int64_t> chosen(at((items + window - 1) / window));
    loop(parallel, static_cast<int64_t>(chosen.size()), rows_of_a_thread / window, [&](int64_t from, int64_t to) {
      for (int64_t w = from; w < to; ++w) {
        int64_t best = w * window;
        for (int64_t i = best; i < std::min(items, (w + 1) * window) && w > 0; ++i)
          if (cuts_[at(row(i))] > cuts_[at(row(best))]) best = i;
        chosen[at(w)] = best;
      }
    });
    return chosen;
  }

  void add_planes(const Parallel* parallel) {
    HugeVector<int64_t> starts = boundaries(rows(), leaf_window, [](int64_t i) { return i; }, parallel);
    nodes.clear();
    nodes.reserve(2 * starts.size());
    planes.assign(1, 0);
    add_plane(starts, rows(), -1, starts, parallel);
    while (starts.size() > 1) {
      const int64_t below = planes[planes.size() - 2], items = static_cast<int64_t>(starts.size());
      const HugeVector<int64_t> chosen =
          boundaries(items, fan_window, [&](int64_t i) { return starts[at(i)]; }, parallel);
      HugeVector<int64_t> next(chosen.size());
      std::transform(chosen.begin(), chosen.end(), next.begin(), [&](int64_t i) { return starts[at(i)]; });
      add_plane(next, items, below, chosen, parallel);
      starts = std::move(next);
    }
    moments.resize(nodes.size());
    const GravityNodes<D> all{place.data(), weight.data(), nodes.data(), moments.data()};
    for (size_t plane = 0; plane + 1 < planes.size(); ++plane)
      loop(parallel, planes[plane + 1] - planes[plane], 1024, [&](int64_t from, int64_t to) {
        for (int64_t i = planes[plane] + from; i < planes[plane] + to; ++i)
          all.take_moments(nodes[at(i)], moments[at(i)]);
      });
  }

  // items: the number of rows or nodes below; below: the first node there, or -1; chosen: the first item of each node.
  void add_plane(const HugeVector<int64_t>& starts, int64_t items, int64_t below, const HugeVector<int64_t>& chosen,
                 const Parallel* parallel) {
    const int64_t first = planes.back(), added = static_cast<int64_t>(starts.size());
    nodes.resize(at(first + added));
    planes.push_back(first + added);
    loop(parallel, added, rows_of_a_thread, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        const bool last = i + 1 == added;
        GravityNode<D>& node = nodes[at(first + i)] = {};
        node.begin = static_cast<int32_t>(starts[at(i)]);
        node.end = static_cast<int32_t>(last ? rows() : starts[at(i + 1)]);
        if (below < 0) continue;
        node.child = static_cast<int32_t>(below + chosen[at(i)]);
        node.children = static_cast<int32_t>((last ? items : chosen[at(i + 1)]) - chosen[at(i)]);
      }
    });
  }

  double lower_[D], upper_[D];  // of the places
  HugeVector<uint8_t> cuts_;    // the highest bit that differs between each key and the key before
};

}  // namespace jztree
