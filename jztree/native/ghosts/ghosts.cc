// Which particles of a rank the other ranks need.
//
// Every rank publishes boxes: of its sources, with how many are in each, and of its queries, with the radius that these
// still have to look into. A rank sends what lies within the radius of a box of another rank. Distances are in float64
// and radii are enlarged by what rounding may have taken off, so nothing that is needed is left out.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "common/morton.h"
#include "common/space.h"
#include "common/cpu/handler.h"
#include "common/cpu/parallel.h"

namespace jztree {
namespace {

// Boxes [count] in wrapped coordinates; empty ones have low > high.
template <int D, typename T>
struct Boxes {
  const T *lower, *upper;
  int64_t count;

  bool empty(int64_t i) const { return !(lower[i * D] <= upper[i * D]); }
};

bool within(double gap2, double radius) { return gap2 <= radius * radius; }

template <int D, typename T>
void bounding_box(const Boxes<D, T>& boxes, int64_t begin, int64_t end, T* low, T* high) {
  std::fill(low, low + D, std::numeric_limits<T>::infinity());
  std::fill(high, high + D, -std::numeric_limits<T>::infinity());
  for (int64_t i = begin; i < end; ++i)
    for (int d = 0; d < D; ++d) {
      low[d] = std::min(low[d], boxes.lower[i * D + d]);
      high[d] = std::max(high[d], boxes.upper[i * D + d]);
    }
}

template <int D>
bool fits(const ffi::AnyBuffer& buffer, const ffi::AnyBuffer& like, int64_t rows, int64_t columns = D) {
  return buffer.element_type() == like.element_type() && static_cast<int64_t>(buffer.element_count()) == rows * columns;
}

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

// Which leaves of queries may have neighbours on other ranks, and the radius that each of the rank's boxes still needs.
ffi::Error open_leaves(ffi::ThreadPool pool, ffi::Buffer<ffi::S32> leaf_splits, ffi::AnyBuffer leaf_lower,
                       ffi::AnyBuffer leaf_upper, ffi::Buffer<ffi::S32> own_splits, ffi::AnyBuffer own_lower,
                       ffi::AnyBuffer own_upper, ffi::AnyBuffer radius, ffi::Buffer<ffi::S32> rows,
                       ffi::AnyBuffer source_lower, ffi::AnyBuffer source_upper, ffi::Buffer<ffi::S32> source_counts,
                       ffi::Buffer<ffi::S32> rank, ffi::AnyBuffer box, ffi::Result<ffi::Buffer<ffi::S32>> open,
                       ffi::Result<ffi::AnyBuffer> wanted, int64_t ranks, int64_t enough) {
  return dispatch<max_dims>(leaf_lower, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    double period[D];
    int64_t leaves = leaf_lower.dimensions()[0], own = static_cast<int64_t>(own_splits.element_count()) - 1;
    int64_t sources = static_cast<int64_t>(source_counts.element_count());
    auto shape = radius.dimensions();
    if (!read_exact(box, D, period) || static_cast<int64_t>(leaf_splits.element_count()) != leaves + 1 ||
        !fits<D>(leaf_upper, leaf_lower, leaves) || !fits<D>(own_lower, leaf_lower, own) ||
        !fits<D>(own_upper, leaf_lower, own) || !fits<D>(source_lower, leaf_lower, sources) ||
        !fits<D>(source_upper, leaf_lower, sources) || shape.size() != 2 ||
        !fits<D>(radius, leaf_lower, shape[0], shape[1]) ||
        (rows.element_count() != 0 && static_cast<int64_t>(rows.element_count()) != shape[0]) || ranks < 1 ||
        sources % ranks != 0 || static_cast<int64_t>(open->element_count()) != leaves ||
        static_cast<int64_t>(wanted->element_count()) != own)
      return invalid("open_leaves was called with arrays that do not fit together.");
    OpenSearch<D, T> search{Space<D>(period, T{}),
                            {leaf_lower.typed_data<T>(), leaf_upper.typed_data<T>(), leaves},
                            {own_lower.typed_data<T>(), own_upper.typed_data<T>(), own},
                            {source_lower.typed_data<T>(), source_upper.typed_data<T>(), sources},
                            leaf_splits.typed_data(),
                            own_splits.typed_data(),
                            source_counts.typed_data(),
                            radius.typed_data<T>(),
                            rows.element_count() ? rows.typed_data() : nullptr,
                            shape[1],
                            rank.typed_data()[0],
                            sources / ranks,
                            enough};
    std::fill_n(open->typed_data(), leaves, 0);
    search.run(Parallel(pool), open->typed_data(), wanted->typed_data<T>());
    return ffi::Error::Success();
  });
}

// The rows of one rank that others need, found block by block: runs of rows that are near each other.
template <int D, typename T>
struct GhostSelection {
  Space<D> space;
  const T* pos;
  const double* box;
  const int32_t* splits;
  Boxes<D, T> blocks, wanted;
  const T* radius;  // of each wanted box; negative: it wants nothing
  int64_t per_rank;

  // The boxes out of `candidates` that want something of [low, high].
  void near(const T* low, const T* high, const std::vector<int64_t>& candidates, std::vector<int64_t>& out) const {
    out.clear();
    for (int64_t i : candidates)
      if (within(space.gap2(low, high, wanted.lower + i * D, wanted.upper + i * D), space.enlarged(radius[i])))
        out.push_back(i);
  }

  bool is_wanted(int64_t row, const std::vector<int64_t>& boxes) const {
    T x[D];
    for (int d = 0; d < D; ++d) x[d] = wrap(pos[row * D + d], box[d]);
    for (int64_t i : boxes)
      if (within(space.gap2(x, x, wanted.lower + i * D, wanted.upper + i * D), space.enlarged(radius[i]))) return true;
    return false;
  }

  // The rows that rank r wants, in their order. low, high: the bounding box of all rows.
  std::vector<int32_t> rows_for(const Parallel& parallel, int64_t r, const T* low, const T* high) const {
    std::vector<int64_t> candidates, of_rank;
    for (int64_t i = r * per_rank; i < (r + 1) * per_rank; ++i)
      if (radius[i] >= 0 && !wanted.empty(i)) candidates.push_back(i);
    if (!(low[0] <= high[0])) return {};
    near(low, high, candidates, of_rank);
    if (of_rank.empty()) return {};
    constexpr int64_t grain = 64;
    std::vector<std::vector<int32_t>> parts(static_cast<size_t>((blocks.count + grain - 1) / grain));
    parallel.blocks(static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
      std::vector<int64_t> boxes;
      for (int64_t part = begin; part < end; ++part)
        for (int64_t b = part * grain; b < std::min(blocks.count, (part + 1) * grain); ++b) {
          if (splits[b] == splits[b + 1]) continue;
          near(blocks.lower + b * D, blocks.upper + b * D, of_rank, boxes);
          if (boxes.empty()) continue;
          for (int32_t row = splits[b]; row < splits[b + 1]; ++row)
            if (is_wanted(row, boxes)) parts[static_cast<size_t>(part)].push_back(row);
        }
    });
    std::vector<int32_t> rows;
    for (const auto& part : parts) rows.insert(rows.end(), part.begin(), part.end());
    return rows;
  }
};

// The rows that each rank is to have: to itself all, to another those within the radius of its boxes; with lower_only
// nothing to higher ranks. Counts are right even if the rows do not all fit into the order.
ffi::Error select_ghosts(ffi::ThreadPool pool, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num,
                         ffi::Buffer<ffi::S32> splits, ffi::AnyBuffer lower, ffi::AnyBuffer upper,
                         ffi::AnyBuffer wanted_lower, ffi::AnyBuffer wanted_upper, ffi::AnyBuffer radius,
                         ffi::Buffer<ffi::S32> rank, ffi::AnyBuffer box, ffi::Result<ffi::Buffer<ffi::S32>> order,
                         ffi::Result<ffi::Buffer<ffi::S32>> counts, bool lower_only) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    double period[D];
    int64_t blocks = static_cast<int64_t>(splits.element_count()) - 1, me = rank.typed_data()[0];
    int64_t wanted = static_cast<int64_t>(radius.element_count()),
            ranks = static_cast<int64_t>(counts->element_count());
    int64_t rows = read_count(num, pos.dimensions()[0]);
    if (!read_exact(box, D, period) || !fits<D>(lower, pos, blocks) || !fits<D>(upper, pos, blocks) ||
        !fits<D>(wanted_lower, pos, wanted) || !fits<D>(wanted_upper, pos, wanted) ||
        !fits<D>(radius, pos, wanted, 1) || ranks < 1 || wanted % ranks != 0 || splits.typed_data()[blocks] > rows)
      return invalid("select_ghosts was called with arrays that do not fit together.");
    GhostSelection<D, T> selection{Space<D>(period, T{}),
                                   pos.typed_data<T>(),
                                   period,
                                   splits.typed_data(),
                                   {lower.typed_data<T>(), upper.typed_data<T>(), blocks},
                                   {wanted_lower.typed_data<T>(), wanted_upper.typed_data<T>(), wanted},
                                   radius.typed_data<T>(),
                                   wanted / ranks};
    Parallel parallel(pool);
    T low[D], high[D];
    bounding_box(selection.blocks, 0, blocks, low, high);
    int64_t room = static_cast<int64_t>(order->element_count()), place = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      std::vector<int32_t> chosen;
      if (r == me) {
        chosen.resize(static_cast<size_t>(rows));
        for (int64_t i = 0; i < rows; ++i) chosen[static_cast<size_t>(i)] = static_cast<int32_t>(i);
      } else if (r < me || !lower_only) {
        chosen = selection.rows_for(parallel, r, low, high);
      }
      int64_t fitting = std::max<int64_t>(0, std::min<int64_t>(room - place, static_cast<int64_t>(chosen.size())));
      std::copy_n(chosen.begin(), fitting, order->typed_data() + std::min(place, room));
      counts->typed_data()[r] = static_cast<int32_t>(chosen.size());
      place += static_cast<int64_t>(chosen.size());
    }
    std::fill(order->typed_data() + std::min(place, room), order->typed_data() + room, -1);
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_open_leaves, open_leaves, "ranks", "enough");
JZTREE_HANDLER(jztree_select_ghosts, select_ghosts, "lower_only");

}  // namespace jztree
