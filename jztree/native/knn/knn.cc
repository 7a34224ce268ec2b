// Exact k nearest neighbours.
//
// The unit of work is a group of queries that are neighbours in z-order, a leaf of the queries' own hierarchy. A group
// starts at the leaf of sources nearest to it (its own leaf, if sources and queries are the same), so that its radii
// are tight early, then walks the planes from the top, nearest nodes first, skipping what is farther than its largest
// radius. In a leaf each query prunes once more with its own radius; distances to a leaf's particles are computed in
// vector loops, and those below the radius are packed without branches and handed to the k-best list. Nothing is stored
// but the lists of the group at work. Results go straight to their rows in the output.
//
// Ties are broken by the lower row in z-order, and a query that is a source is its own first neighbour. So the walk
// skips a node at exactly the largest radius only if its rows come after those found, which keeps sets of equal points
// linear.
//
// Squared distances in float32 vanish where neighbours are more than 2^90 times closer than the set is wide. Queries
// that meet this are searched again in float64.

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "common/cpu/handler.h"
#include "knn_walk.h"
#include "common/cpu/leaf_distances.h"
#include "common/cpu/parallel.h"
#include "common/cpu/staged_tree.h"
#include "common/cpu/tree_buffers.h"

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
  Stage(const Parallel& parallel, const TreeArrays<D, From>& source_arrays, const TreeArrays<D, From>& query_arrays,
        bool self, const double* box, double extent)
      : scale(box, std::max(extent, open_extent(box, source_arrays, query_arrays))),
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
  WideSearch(const Parallel& parallel, const TreeArrays<D, T>& sources, const TreeArrays<D, T>& queries, bool self,
             const double* box, double extent, const Output<T>& out)
      : parallel_(parallel),
        source_arrays_(sources),
        query_arrays_(queries),
        self_(self),
        box_(box),
        extent_(extent),
        out_{out.source_rows, out.query_rows, nullptr, nullptr, out.index, out.k, 1., out.own_offset} {
    if constexpr (std::is_same<T, float>::value) out_.narrow_radius = out.radius;
  }

  void group(int64_t leaf, const std::vector<uint8_t>& asked) {
    std::call_once(once_, [&] {
      stage_ = std::make_unique<Stage<D, double>>(parallel_, source_arrays_, query_arrays_, self_, box_, extent_);
      out_.unit = stage_->scale.inverse;
    });
    stage_->walk(out_).group(leaf, &asked);
  }

 private:
  const Parallel& parallel_;
  const TreeArrays<D, T>&source_arrays_, &query_arrays_;
  const bool self_;
  const double* box_;
  const double extent_;
  Output<double> out_;
  std::once_flag once_;
  std::unique_ptr<Stage<D, double>> stage_;
};

template <int D, typename T>
void search_all(const Parallel& parallel, const TreeArrays<D, T>& sources, const TreeArrays<D, T>& queries, bool self,
                const int32_t* open, const double* box, double extent, Output<T> out, int64_t rows) {
  Stage<D, T> stage(parallel, sources, queries, self, box, extent);
  out.unit = stage.scale.inverse;
  WideSearch<D, T> wide(parallel, sources, queries, self, box, extent, out);
  parallel.blocks(stage.queries().leaves(), 32, [&](int64_t begin, int64_t end) {
    Walk<D, T> walk = stage.walk(out);
    for (int64_t leaf = begin; leaf < end; ++leaf)
      if ((!open || open[leaf]) && !walk.group(leaf) && std::is_same<T, float>::value) wide.group(leaf, walk.lost());
  });
  if (open) return;
  for (int64_t row = queries.num; row < rows; ++row) out.write_none(row);
}

// Whether a result takes up what `old` holds, if that is given; copies it where XLA gave the result other memory.
template <typename Old, typename Result>
bool continues(const Old& old, Result& result) {
  if (old.element_count() == 0) return true;
  if (old.size_bytes() != result.size_bytes()) return false;
  if (old.untyped_data() != result.untyped_data())
    std::memcpy(result.untyped_data(), old.untyped_data(), old.size_bytes());
  return true;
}

// domain: lower and upper corner of the set that sources and queries are part of, or nothing.
// self: the sources are the queries, row by row. open: which leaves of queries are searched; the results of all others
// stay what they were. Empty: all.
ffi::Error knn(ffi::ThreadPool pool, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num, ffi::Buffer<ffi::S32> splits,
               ffi::Buffer<ffi::S32> particle_splits, ffi::AnyBuffer lower, ffi::AnyBuffer upper,
               ffi::Buffer<ffi::S32> source_rows, ffi::AnyBuffer query, ffi::Buffer<ffi::S32> query_num,
               ffi::Buffer<ffi::S32> query_splits, ffi::Buffer<ffi::S32> query_particle_splits,
               ffi::AnyBuffer query_lower, ffi::AnyBuffer query_upper, ffi::Buffer<ffi::S32> query_rows,
               ffi::Buffer<ffi::S32> own_offset, ffi::Buffer<ffi::S32> open, ffi::AnyBuffer box, ffi::AnyBuffer domain,
               ffi::AnyBuffer old_radius, ffi::Buffer<ffi::S32> old_index, ffi::Result<ffi::AnyBuffer> radius,
               ffi::Result<ffi::Buffer<ffi::S32>> index, ffi::Span<const int64_t> plane_sizes,
               ffi::Span<const int64_t> query_plane_sizes, bool self) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    double period[D];
    int64_t n = pos.dimensions()[0], q = query.dimensions()[0];
    auto shape = radius->dimensions();
    auto rows_fit = [](const auto& rows, int64_t count) {
      return rows.element_count() == 0 || static_cast<int64_t>(rows.element_count()) == count;
    };
    if (!read_exact(box, D, period) || query.element_type() != pos.element_type() || shape.size() != 2 ||
        shape[0] != q || radius->element_type() != pos.element_type() ||
        index->element_count() != radius->element_count() || !rows_fit(source_rows, n) || !rows_fit(query_rows, q) ||
        own_offset.element_count() != 1 || domain.element_type() != pos.element_type() ||
        (domain.element_count() != 0 && domain.element_count() != 2 * D) || !rows_fit(open, query_plane_sizes[0]) ||
        !continues(old_radius, *radius) || !continues(old_index, *index))
      return invalid("knn was called with arrays that do not fit together.");
    auto sources = read_tree<D, T>(pos, num, splits, particle_splits, lower, upper, plane_sizes);
    auto queries = read_tree<D, T>(query, query_num, query_splits, query_particle_splits, query_lower, query_upper,
                                   query_plane_sizes);
    int64_t own = own_offset.typed_data()[0];
    if (!sources || !queries || (own >= 0 && own + queries->num > sources->num))
      return invalid("knn was called with arrays that do not fit together.");
    auto rows = [](const auto& buffer) { return buffer.element_count() == 0 ? nullptr : buffer.typed_data(); };
    double extent = 0;
    for (int d = 0; d < D && domain.element_count() > 0; ++d) {
      const T* corners = domain.typed_data<T>();
      if (period[d] == 0)
        extent = std::max(extent, static_cast<double>(corners[D + d]) - static_cast<double>(corners[d]));
    }
    Output<T> out{rows(source_rows),
                  rows(query_rows),
                  radius->typed_data<T>(),
                  nullptr,
                  index->typed_data(),
                  shape[1],
                  T{1},
                  own};
    if (shape[1] == 0 || q == 0) return ffi::Error::Success();
    search_all<D, T>(Parallel(pool), *sources, *queries, self, rows(open), period, extent, out, q);
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_knn, knn, "plane_sizes", "query_plane_sizes", "self");

}  // namespace jztree
