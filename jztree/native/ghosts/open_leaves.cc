#include "open_leaves.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "bounding_box.h"
#include "common/cpu/context.h"
#include "common/space.h"

namespace jztree {
namespace {

// The queries of one rank, as leaves and as the boxes that it publishes.
template <int D, typename T>
struct OpenSearch {
  Space<D> space;
  Boxes<D, T> leaves, own, sources;
  const int32_t *leaf_splits, *own_splits, *source_counts;
  const T* radius;      // (q, k)
  const int32_t* rows;  // where each query's radii are; null: at its place
  int64_t k, rank, per_rank;
  int64_t enough;  // so many sources are all that a query needs

  T last_radius(int64_t query) const { return radius[(rows ? rows[query] : query) * k + k - 1]; }

  T largest_radius(int64_t begin, int64_t end) const {
    T most = T{-1};
    for (int64_t q = begin; q < end; ++q) most = std::max(most, last_radius(q));
    return most;
  }

  // A radius within which every query of box i surely finds enough sources: that in which boxes hold so many.
  double bound(int64_t i, double known) const {
    std::vector<std::pair<double, int64_t>> near;
    for (int64_t s = 0; s < sources.count; ++s) {
      if (source_counts[s] == 0) continue;
      double reach = space.reach(own.lower + i * D, own.upper + i * D, sources.lower + s * D, sources.upper + s * D);
      // Radii are found in the precision of T, in which more sources may be at the same distance.
      reach *= 1 + 32 * static_cast<double>(std::numeric_limits<T>::epsilon());
      if (reach < known) near.emplace_back(reach, source_counts[s]);
    }
    std::sort(near.begin(), near.end());
    int64_t found = 0;
    for (const auto& [reach, count] : near)
      if ((found += count) >= enough) return reach;
    return known;
  }

  // Whether a source of another rank may be within the radius of a leaf.
  bool reaches_others(int64_t leaf, double most, const std::vector<T>& ranks) const {
    const T *low = leaves.lower + leaf * D, *high = leaves.upper + leaf * D;
    for (int64_t r = 0; r < sources.count / per_rank; ++r) {
      const T* of_rank = ranks.data() + r * 2 * D;
      if (r == rank || !(of_rank[0] <= of_rank[D]) || !within(space.gap2(low, high, of_rank, of_rank + D), most))
        continue;
      for (int64_t s = r * per_rank; s < (r + 1) * per_rank; ++s)
        if (source_counts[s] > 0 && within(space.gap2(low, high, sources.lower + s * D, sources.upper + s * D), most))
          return true;
    }
    return false;
  }

  void run(const Parallel& parallel, int32_t* open, T* wanted) const {
    std::vector<T> ranks(static_cast<size_t>(sources.count / per_rank * 2 * D));
    for (int64_t r = 0; r < sources.count / per_rank; ++r)
      bounding_box(sources, r * per_rank, (r + 1) * per_rank, ranks.data() + r * 2 * D, ranks.data() + r * 2 * D + D);
    std::vector<double> bounds(static_cast<size_t>(own.count)), needed(static_cast<size_t>(leaves.count));
    parallel.blocks(own.count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        bounds[static_cast<size_t>(i)] = bound(i, space.enlarged(largest_radius(own_splits[i], own_splits[i + 1])));
    });
    parallel.blocks(leaves.count, 64, [&](int64_t begin, int64_t end) {
      for (int64_t leaf = begin; leaf < end; ++leaf) {
        if (leaf_splits[leaf] == leaf_splits[leaf + 1]) continue;
        double& most = needed[static_cast<size_t>(leaf)];
        // A leaf may reach into several of the rank's boxes.
        for (int64_t i = item_over(own_splits, own.count, leaf_splits[leaf]); i < own.count; ++i) {
          if (own_splits[i] >= leaf_splits[leaf + 1]) break;
          if (own_splits[i] < own_splits[i + 1]) most = std::max(most, bounds[static_cast<size_t>(i)]);
        }
        most = std::min(most, space.enlarged(largest_radius(leaf_splits[leaf], leaf_splits[leaf + 1])));
        open[leaf] = reaches_others(leaf, most, ranks);
      }
    });
    for (int64_t i = 0; i < own.count; ++i) wanted[i] = wanted_by(i, needed, open);
  }

  // The largest radius that an open leaf in box i needs, -1 if there is none.
  T wanted_by(int64_t i, const std::vector<double>& needed, const int32_t* open) const {
    T wanted = T{-1};
    if (own_splits[i] == own_splits[i + 1]) return wanted;
    for (int64_t l = item_over(leaf_splits, leaves.count, own_splits[i]); l < leaves.count; ++l) {
      if (leaf_splits[l] >= own_splits[i + 1]) break;
      // Rounded up, so that it is not below the radius in float64.
      if (open[l])
        wanted = std::max(wanted,
                          static_cast<T>(needed[static_cast<size_t>(l)]) * (1 + 4 * std::numeric_limits<T>::epsilon()));
    }
    return wanted;
  }
};

template <int D, typename T>
void open_leaves(const Parallel& parallel, const OpenLeaves<D, T>& in) {
  double period[D];
  in.box.read(period);
  OpenSearch<D, T> search{Space<D>(period, T{}), in.leaves.boxes, in.own.boxes,  in.sources.boxes, in.leaves.splits,
                          in.own.splits,         in.source_counts, in.radius,    in.rows,          in.k(),
                          *in.rank,              in.sources.per_rank, in.enough};
  std::fill_n(in.open, in.leaves.boxes.count, 0);
  search.run(parallel, in.open, in.wanted);
}

}  // namespace

JZTREE_KERNEL(open_leaves, OpenLeaves);

}  // namespace jztree
