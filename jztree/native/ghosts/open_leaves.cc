#include "open_leaves.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/cpu/context.h"
#include "common/space.h"
#include "rank_tree.h"

namespace jztree {
namespace {

template <int D, typename T>
struct OpenSearch {
  const OpenLeaves<D, T>& in;
  const BoxedRuns<D, T>&leaves, &own;
  Space<D> space;

  OpenSearch(const OpenLeaves<D, T>& arguments, const double* period)
      : in(arguments), leaves(in.leaves), own(in.own), space(period, T{}) {}

  T last_radius(int64_t query) const { return in.radius[((in.rows ? in.rows[query] : query) + 1) * in.k() - 1]; }

  T largest_radius(int64_t begin, int64_t end) const {
    T largest = T{-1};
    for (int64_t q = begin; q < end; ++q) largest = std::max(largest, last_radius(q));
    return largest;
  }

  // The largest radius of the queries of each leaf. Radii are far apart in memory, so each is read once.
  std::vector<T> largest_of_leaves(const Parallel& parallel) const {
    std::vector<T> largest(static_cast<size_t>(leaves.count));
    parallel.blocks(leaves.count, 64, [&](int64_t begin, int64_t end) {
      for (int64_t leaf = begin; leaf < end; ++leaf)
        largest[static_cast<size_t>(leaf)] = largest_radius(leaves.splits[leaf], leaves.splits[leaf + 1]);
    });
    return largest;
  }

  // The largest radius of the queries of box i, which may hold parts of leaves.
  T largest_of_box(int64_t i, const std::vector<T>& largest) const {
    const int64_t begin = own.splits[i], end = own.splits[i + 1];
    T box_radius = T{-1};
    if (begin == end) return box_radius;
    for (int64_t leaf = item_over(leaves.splits, leaves.count, begin); leaf < leaves.count; ++leaf) {
      const int64_t first = leaves.splits[leaf], last = leaves.splits[leaf + 1];
      if (first >= end) break;
      const bool enclosed = begin <= first && last <= end;
      box_radius = std::max(box_radius, enclosed ? largest[static_cast<size_t>(leaf)]
                                                 : largest_radius(std::max(begin, first), std::min(end, last)));
    }
    return box_radius;
  }

  // A radius within which every query of box i surely finds enough sources: the radius within which boxes hold that
  // number.
  double bound(int64_t i, double upper_limit, const RankTree<D, T>& ranks) const {
    const T *low = own.low(i), *high = own.high(i);
    return ranks.reach_of_enough(space, low, high, in.enough, upper_limit, [&](const T* lower, const T* upper) {
      // Radii are found in the precision of T, in which more sources may be at the same distance.
      return space.reach(low, high, lower, upper) * (1 + 32 * static_cast<double>(std::numeric_limits<T>::epsilon()));
    });
  }

  void run(const Parallel& parallel) const {
    const RankTree<D, T> ranks(parallel, in.sources, in.source_counts), close(parallel, in.close, in.close_counts);
    const std::vector<T> largest = largest_of_leaves(parallel);
    std::vector<double> bounds(static_cast<size_t>(own.count)), needed(static_cast<size_t>(leaves.count));
    std::vector<uint8_t> inside(static_cast<size_t>(own.count));  // boxes with no other rank nearby
    parallel.blocks(own.count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double& box_bound = bounds[static_cast<size_t>(i)];
        box_bound = bound(i, bound(i, space.enlarged(largest_of_box(i, largest)), close), ranks);
        inside[static_cast<size_t>(i)] = !ranks.any_within(space, own.low(i), own.high(i), box_bound, *in.rank);
      }
    });
    parallel.blocks(leaves.count, 64, [&](int64_t begin, int64_t end) {
      for (int64_t leaf = begin; leaf < end; ++leaf) {
        in.open[leaf] = 0;
        if (leaves.splits[leaf] == leaves.splits[leaf + 1]) continue;
        double& radius = needed[static_cast<size_t>(leaf)];
        int64_t i = item_over(own.splits, own.count, leaves.splits[leaf]);
        if (inside[static_cast<size_t>(i)] && leaves.splits[leaf + 1] <= own.splits[i + 1]) continue;
        // A leaf may reach into several of the rank's boxes.
        for (; i < own.count; ++i) {
          if (own.splits[i] >= leaves.splits[leaf + 1]) break;
          if (own.splits[i] < own.splits[i + 1]) radius = std::max(radius, bounds[static_cast<size_t>(i)]);
        }
        radius = std::min(radius, space.enlarged(largest[static_cast<size_t>(leaf)]));
        in.open[leaf] = ranks.any_within(space, leaves.low(leaf), leaves.high(leaf), radius, *in.rank);
      }
    });
    for (int64_t i = 0; i < own.count; ++i) in.wanted[i] = wanted_by(i, needed);
  }

  // The largest radius that an open leaf in box i needs, or -1 without open leaves.
  T wanted_by(int64_t i, const std::vector<double>& needed) const {
    T largest_radius = T{-1};
    if (own.splits[i] == own.splits[i + 1]) return largest_radius;
    for (int64_t l = item_over(leaves.splits, leaves.count, own.splits[i]); l < leaves.count; ++l) {
      if (leaves.splits[l] >= own.splits[i + 1]) break;
      // Rounded up, so that it is not below the radius in float64.
      if (in.open[l])
        largest_radius = std::max(largest_radius, static_cast<T>(needed[static_cast<size_t>(l)]) *
                                                      (1 + 4 * std::numeric_limits<T>::epsilon()));
    }
    return largest_radius;
  }
};

template <int D, typename T>
void open_leaves(const Parallel& parallel, const OpenLeaves<D, T>& in) {
  double period[D];
  in.box.read(period);
  OpenSearch<D, T>(in, period).run(parallel);
}

}  // namespace

JZTREE_KERNEL(open_leaves, OpenLeaves);

}  // namespace jztree
