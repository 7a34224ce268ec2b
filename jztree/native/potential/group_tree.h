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
#include <vector>

#include "common/cpu/memory.h"
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
  std::vector<int32_t> order;         // the row in the group of each particle in z-order
  std::vector<double> place, weight;  // of particles in z-order
  double length_factor = 1, mass_factor = 1, softening = 0;
  bool has_negative = false;
  double wide_period[D] = {};  // the period of dimensions in which some pairs have nearer images than their places
  std::vector<GravityNode<D>> nodes;
  std::vector<NodeMoments<D>> moments;
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

  // extent: of the images around the particles, or 0. parallel: null for one thread.
  template <typename T>
  void build(const GroupParticles<D, T>& particles, int64_t begin, int64_t end, double length, bool wants_tree,
             double extent, const Parallel* parallel) {
    const int64_t n = end - begin;
    order.resize(at(n));
    place.resize(at(n * D));
    weight.resize(at(n));
    planes.clear();
    read(particles, begin, n, extent, parallel);
    softening = length * length_factor;
    if (!wants_tree) return;
    sort(parallel);
    add_planes(parallel);
  }

 private:
  static constexpr int64_t few = 32;
  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  template <typename T>
  void read(const GroupParticles<D, T>& particles, int64_t begin, int64_t n, double extent, const Parallel* parallel) {
    double first[D], total = 0;
    particles.place_of(begin, first);
    loop(parallel, n, rows_of_a_thread, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        double* to_place = &place[at(i * D)];
        order[at(i)] = static_cast<int32_t>(i);
        particles.place_of(begin + i, to_place);
        for (int d = 0; d < D; ++d)
          if (particles.period[d] > 0) to_place[d] = nearest_difference(to_place[d], first[d], particles.period[d]);
        weight[at(i)] = particles.mass_of(begin + i);
      }
    });
    has_negative = false;
    std::copy_n(place.data(), D, lower_);
    std::copy_n(place.data(), D, upper_);
    for (int64_t i = 0; i < n; ++i) {
      for (int d = 0; d < D; ++d) {
        lower_[d] = std::min(lower_[d], place[at(i * D + d)]);
        upper_[d] = std::max(upper_[d], place[at(i * D + d)]);
      }
      total = std::max(total, std::fabs(weight[at(i)]));
      has_negative |= weight[at(i)] < 0;
    }
    for (int d = 0; d < D; ++d) extent = std::max(extent, upper_[d] - lower_[d]);
    length_factor = factor_to_one(extent);
    for (int d = 0; d < D; ++d)
      wide_period[d] = 2 * (upper_[d] - lower_[d]) > particles.period[d] ? particles.period[d] * length_factor : 0;
    mass_factor = factor_to_one(total);
    for (int d = 0; d < D; ++d) lower_[d] *= length_factor, upper_[d] *= length_factor;
    loop(parallel, n, rows_of_a_thread, [&](int64_t from, int64_t to) {
      for (int64_t i = from * D; i < to * D; ++i) place[at(i)] *= length_factor;
      for (int64_t i = from; i < to; ++i) weight[at(i)] *= mass_factor;
    });
  }

  void sort(const Parallel* parallel) {
    const int64_t n = rows();
    const double open[D] = {};
    const KeyGrid<D> grid(KeyShape<D>{D}, lower_, upper_, open);
    CacheSort sorter;
    CacheSort::Item* items = sorter.items(n);
    loop(parallel, n, rows_of_a_thread, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i)
        items[i] = {Morton<D>::high(grid, &place[at(i * D)]), static_cast<uint32_t>(i)};
    });
    if (!std::is_sorted(items, items + n, [](const auto& a, const auto& b) { return a.key < b.key; })) {
      sorter.sort(n, true, {});
      const std::vector<double> unsorted = place, masses = weight;
      loop(parallel, n, rows_of_a_thread, [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; ++i) {
          const auto row = items[i].index;
          order[at(i)] = static_cast<int32_t>(row);
          weight[at(i)] = masses[row];
          std::copy_n(&unsorted[size_t{row} * D], D, &place[at(i * D)]);
        }
      });
    }
    cuts_.resize(at(n));
    for (int64_t i = 0; i < n; ++i)
      cuts_[at(i)] = i == 0 ? 64 : static_cast<uint8_t>(64 - leading(items[i].key ^ items[i - 1].key));
  }
  static int leading(uint64_t x) { return x == 0 ? 64 : leading_zeros(x); }

  // The boundary in each window: the candidate with the largest cut, the first of several.
  template <typename Row>
  static std::vector<int64_t> boundaries(int64_t items, int64_t window, const std::vector<uint8_t>& cuts,
                                         const Row& row) {
    std::vector<int64_t> chosen;
    for (int64_t from = 0; from < items; from += window) {
      int64_t best = from, to = std::min(items, from + window);
      for (int64_t i = from; i < to && from > 0; ++i)
        if (cuts[at(row(i))] > cuts[at(row(best))]) best = i;
      chosen.push_back(best);
    }
    return chosen;
  }

  void add_planes(const Parallel* parallel) {
    std::vector<int64_t> starts = boundaries(rows(), leaf_window, cuts_, [](int64_t i) { return i; }), first;
    nodes.clear();
    planes.assign(1, 0);
    add_plane(starts, rows(), -1, starts);
    while (starts.size() > 1) {
      const int64_t below = planes[planes.size() - 2];
      const std::vector<int64_t> chosen =
          boundaries(static_cast<int64_t>(starts.size()), fan_window, cuts_, [&](int64_t i) { return starts[at(i)]; });
      std::vector<int64_t> next;
      for (int64_t i : chosen) next.push_back(starts[at(i)]);
      add_plane(next, static_cast<int64_t>(starts.size()), below, chosen);
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
  void add_plane(const std::vector<int64_t>& starts, int64_t items, int64_t below, const std::vector<int64_t>& chosen) {
    for (size_t i = 0; i < starts.size(); ++i) {
      const bool last = i + 1 == starts.size();
      GravityNode<D> node{};
      node.begin = static_cast<int32_t>(starts[i]);
      node.end = static_cast<int32_t>(last ? rows() : starts[i + 1]);
      if (below >= 0) {
        node.child = static_cast<int32_t>(below + chosen[i]);
        node.children = static_cast<int32_t>((last ? items : chosen[i + 1]) - chosen[i]);
      }
      nodes.push_back(node);
    }
    planes.push_back(static_cast<int64_t>(nodes.size()));
  }

  double lower_[D], upper_[D];  // of the places
  std::vector<uint8_t> cuts_;   // the highest bit that differs between each key and the key before
};

}  // namespace jztree
