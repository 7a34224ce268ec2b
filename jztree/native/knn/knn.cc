// The unit of work is a group of queries that are neighbours in z-order, a leaf of the queries' own hierarchy. A group
// starts at the leaf of sources nearest to it (its own leaf, if sources and queries are the same), so that its radii
// become tight early. Then it walks the planes from the top, nearest nodes first, and skips nodes farther than its
// largest radius. In a leaf each query prunes again with its own radius. Vector loops compute the distances to a leaf's
// particles and set a bit for each distance below the radius; the k-best list then takes these particles. Only the
// lists of the current group are stored. Results go straight to their rows in the output.
//
// Ties are broken by the lower row. So the walk skips a node at exactly the largest radius only if its rows come after
// the found ones, which keeps the cost of sets of equal points linear.
//
// If leaves are open, radii start at the earlier results. A first walk visits only the sources that are not queries,
// and finds the queries with such a source within their radius. Only these queries are searched again.
//
// If there is a limit, radii start there. Candidates that float32 cannot decide at the limit are decided in float64
// from the unchanged input positions before a list takes them.
//
// Squared distances in float32 underflow if neighbours are more than 2^90 times closer than the set is wide. Such
// queries are searched again in float64.

#include "knn.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "common/cpu/context.h"
#include "common/cpu/leaf_distances.h"
#include "common/cpu/spares.h"
#include "common/cpu/staged_tree.h"
#include "knn_walk.h"

namespace jztree {
namespace {

// Staged sources and queries for distances of type T. From: the dtype of the positions.
template <int D, typename T, typename From>
struct Stage {
  Scale<D, T> scale;
  StagedTree<D, T> sources;
  std::unique_ptr<StagedTree<D, T>> others;  // null if the sources are the queries, row by row
  Limits<D, T, From> limits;
  int64_t max_leaf;  // particles in a leaf of either

  Stage(const Parallel& parallel, const Neighbours<D, From>& in, const double* box, const OpenSpan& whole)
      : scale(box, std::max(whole.for_scale<T>(), open_span(box, in.sources, in.queries).template for_scale<T>())),
        sources(parallel, in.sources, scale, true),
        others(in.self ? nullptr : queries_of(parallel, in)),
        limits(in, {sources.wrapped() || queries().wrapped(), sources.kept() && queries().kept(), scale}),
        max_leaf(std::max(largest_leaf(sources), largest_leaf(queries()))) {}

  // Queries that are also sources are already staged.
  std::unique_ptr<StagedTree<D, T>> queries_of(const Parallel& parallel, const Neighbours<D, From>& in) const {
    const int64_t own_offset = *in.own_offset;
    return own_offset < 0 ? std::make_unique<StagedTree<D, T>>(parallel, in.queries, scale, true)
                          : std::make_unique<StagedTree<D, T>>(parallel, in.queries, sources, own_offset);
  }

  const StagedTree<D, T>& queries() const { return others ? *others : sources; }
  Walk<D, T, From> walk(const Output<D, From>& out) const {
    return Walk<D, T, From>(sources, queries(), scale, max_leaf, limits, out);
  }
};

// The same search in float64, set up when the first group needs it.
template <int D, typename T>
class WideSearch {
 public:
  WideSearch(const Parallel& parallel, const Neighbours<D, T>& in, const double* box, const OpenSpan& whole,
             const Output<D, T>& out)
      : parallel_(parallel), in_(in), box_(box), whole_(whole), out_(out) {}

  void group(int64_t leaf, const std::vector<uint8_t>& asked) {
    std::call_once(once_, [&] { stage_ = std::make_unique<Stage<D, double, T>>(parallel_, in_, box_, whole_); });
    walks_.with([&] { return stage_->walk(out_); }, [&](auto& walk) { walk.group(leaf, &asked); });
  }

 private:
  const Parallel& parallel_;
  const Neighbours<D, T>& in_;
  const double* box_;
  const OpenSpan whole_;
  const Output<D, T>& out_;
  std::once_flag once_;
  std::unique_ptr<Stage<D, double, T>> stage_;
  Spares<Walk<D, double, T>> walks_;
};

template <int D, typename T>
void search_all(const Parallel& parallel, const Neighbours<D, T>& in, const double* box, const OpenSpan& whole) {
  Stage<D, T, T> stage(parallel, in, box, whole);
  const Output<D, T> out(in, stage.scale);
  WideSearch<D, T> wide(parallel, in, box, whole, out);
  int64_t leaves = stage.queries().leaves();
  auto search = [&](Walk<D, T, T>& walk, int64_t begin, int64_t end) {
    for (int64_t leaf = begin; leaf < end; ++leaf)
      if ((!in.open || in.open[leaf]) && !walk.group(leaf) && std::is_same<T, float>::value)
        wide.group(leaf, walk.lost());
  };
  const int64_t grain = std::clamp<int64_t>(leaves / (16 * parallel.threads()), 2, 32);
  Spares<Walk<D, T, T>>().blocks(parallel, leaves, grain, [&] { return stage.walk(out); }, search);
  if (in.open) return;
  for (int64_t row = in.queries.num(); row < in.q(); ++row) out.write(row, nullptr, nullptr, 0);
}

// The span, in open dimensions, of the set to which sources and queries belong.
template <int D, typename T>
OpenSpan domain_span(const Neighbours<D, T>& in, const double* period) {
  OpenSpan span;
  for (int d = 0; d < D && in.domain; ++d)
    if (period[d] == 0) span.include(static_cast<double>(in.domain[d]), static_cast<double>(in.domain[D + d]));
  return span;
}

template <int D, typename T>
void knn(const Parallel& parallel, const Neighbours<D, T>& in) {
  double period[D];
  in.box.read(period);
  int64_t own_offset = *in.own_offset;
  if (own_offset >= 0 && own_offset + in.queries.num() > in.sources.num())
    throw Refusal("own_offset is invalid, because the queries that are sources end after the last source.");
  if (in.k() == 0 || in.q() == 0) return;
  search_all<D, T>(parallel, in, period, domain_span(in, period));
}

}  // namespace

JZTREE_KERNEL(knn, Neighbours);

}  // namespace jztree
