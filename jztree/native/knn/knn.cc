// The unit of work is a group of queries that are neighbours in z-order, a leaf of the queries' own hierarchy. A group
// starts at the leaf of sources nearest to it (its own leaf, if sources and queries are the same), so that its radii
// are tight early, then walks the planes from the top, nearest nodes first, skipping what is farther than its largest
// radius. In a leaf each query prunes once more with its own radius; distances to a leaf's particles are computed in
// vector loops, with a bit for each that is below the radius, which the k-best list then takes. Nothing is stored but
// the lists of the group at work. Results go straight to their rows in the output.
//
// Ties are broken by the lower row, so the walk skips a node at exactly the largest radius only if its rows come after
// those found, which keeps sets of equal points linear.
//
// Squared distances in float32 vanish where neighbours are more than 2^90 times closer than the set is wide. Queries
// that meet this are searched again in float64.

#include "knn.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "common/cpu/context.h"
#include "common/cpu/leaf_distances.h"
#include "common/cpu/staged_tree.h"
#include "knn_walk.h"

namespace jztree {
namespace {

// Sources and queries staged for distances of type T.
template <int D, typename T>
struct Stage {
  Scale<D, T> scale;
  StagedTree<D, T> sources;
  std::unique_ptr<StagedTree<D, T>> others;  // null if the sources are the queries, row by row
  int64_t most;                              // particles in a leaf of either

  template <typename From>
  Stage(const Parallel& parallel, const Tree<D, From>& source_arrays, const Tree<D, From>& query_arrays, bool self,
        const double* box, const OpenSpan& whole)
      : scale(box, std::max(whole.for_scale<T>(), open_span(box, source_arrays, query_arrays).template for_scale<T>())),
        sources(parallel, source_arrays, scale) {
    if (!self) others = std::make_unique<StagedTree<D, T>>(parallel, query_arrays, scale);
    most = std::max(largest_leaf(sources), largest_leaf(queries()));
  }

  const StagedTree<D, T>& queries() const { return others ? *others : sources; }
  Walk<D, T> walk(const Output<T>& out) const { return Walk<D, T>(sources, queries(), scale, most, out); }
};

// The same search in float64, set up when the first group needs it.
template <int D, typename T>
class WideSearch {
 public:
  WideSearch(const Parallel& parallel, const Tree<D, T>& sources, const Tree<D, T>& queries, bool self,
             const double* box, const OpenSpan& whole, const Output<T>& out)
      : parallel_(parallel),
        source_arrays_(sources),
        query_arrays_(queries),
        self_(self),
        box_(box),
        whole_(whole),
        out_{out.source_rows, out.query_rows, nullptr, nullptr, out.index, out.k, 1., out.own_offset} {
    if constexpr (std::is_same<T, float>::value) out_.narrow_radius = out.radius;
  }

  void group(int64_t leaf, const std::vector<uint8_t>& asked) {
    std::call_once(once_, [&] {
      stage_ = std::make_unique<Stage<D, double>>(parallel_, source_arrays_, query_arrays_, self_, box_, whole_);
      out_.unit = stage_->scale.inverse;
    });
    stage_->walk(out_).group(leaf, &asked);
  }

 private:
  const Parallel& parallel_;
  const Tree<D, T>&source_arrays_, &query_arrays_;
  const bool self_;
  const double* box_;
  const OpenSpan whole_;
  Output<double> out_;
  std::once_flag once_;
  std::unique_ptr<Stage<D, double>> stage_;
};

template <int D, typename T>
void search_all(const Parallel& parallel, const Tree<D, T>& sources, const Tree<D, T>& queries, bool self,
                const int32_t* open, const double* box, const OpenSpan& whole, Output<T> out, int64_t rows) {
  Stage<D, T> stage(parallel, sources, queries, self, box, whole);
  out.unit = stage.scale.inverse;
  WideSearch<D, T> wide(parallel, sources, queries, self, box, whole, out);
  parallel.blocks(stage.queries().leaves(), 32, [&](int64_t begin, int64_t end) {
    Walk<D, T> walk = stage.walk(out);
    for (int64_t leaf = begin; leaf < end; ++leaf)
      if ((!open || open[leaf]) && !walk.group(leaf) && std::is_same<T, float>::value) wide.group(leaf, walk.lost());
  });
  if (open) return;
  for (int64_t row = queries.num(); row < rows; ++row) out.write_none(row);
}

// What the set that sources and queries are part of spans in open dimensions.
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
  int64_t own = *in.own_offset;
  if (own >= 0 && own + in.queries.num() > in.sources.num())
    throw Refusal("queries that are sources were to be found behind the last of these.");
  if (in.k() == 0 || in.q() == 0) return;
  Output<T> out{in.source_rows, in.query_rows, in.radius, nullptr, in.index, in.k(), T{1}, own};
  search_all<D, T>(parallel, in.sources, in.queries, in.self, in.open, period, domain_span(in, period), out, in.q());
}

}  // namespace

JZTREE_KERNEL(knn, Neighbours);

}  // namespace jztree
