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

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "handler.h"
#include "kbest.h"
#include "leaf_distances.h"
#include "parallel.h"
#include "staged_tree.h"

namespace jztree {
namespace {

template <typename T>
struct Output {
  const int32_t* source_rows;  // reported row of each z-ordered source; null: its place
  const int32_t* query_rows;   // output row of each z-ordered query; null: its place
  T* radius;                   // (q, k)
  int32_t* index;              // (q, k)
  int64_t k;
  T unit;

  int64_t row(int64_t query) const { return query_rows ? query_rows[query] : query; }

  void write(int64_t query, const Candidate<T>* sorted) const {
    T* rad = radius + row(query) * k;
    int32_t* idx = index + row(query) * k;
    for (int64_t i = 0; i < k; ++i) {
      uint32_t found = candidate_row_plus_one<T>(sorted[i]);
      rad[i] = std::sqrt(candidate_distance2<T>(sorted[i])) * unit;
      int64_t source = found == 0 ? query : static_cast<int64_t>(found) - 1;
      idx[i] = found == no_row ? -1 : source_rows ? source_rows[source] : static_cast<int32_t>(source);
    }
  }

  void write_none(int64_t query) const {
    std::fill_n(radius + row(query) * k, k, std::numeric_limits<T>::infinity());
    std::fill_n(index + row(query) * k, k, -1);
  }
};

// One thread's walk: the lists and work arrays, used for one group after another.
template <int D, typename T>
class Walk {
  using Key = Candidate<T>;

 public:
  Walk(const StagedTree<D, T>& sources, const StagedTree<D, T>& queries, const Scale<D, T>& scale, bool self,
       int64_t most, const Output<T>& out)
      : sources_(sources),
        queries_(queries),
        self_(self),
        out_(out),
        best_(make_kbest<T>(out.k, most)),
        leaf_distances_(scale, most),
        sorted_(static_cast<size_t>(out.k)),
        packed_(static_cast<size_t>(most) + 1) {}

  void group(int64_t leaf) {
    begin_ = queries_.leaf_row(leaf);
    count_ = queries_.leaf_row(leaf + 1) - begin_;
    if (count_ == 0) return;
    for (int d = 0; d < D; ++d) {
      low_[d] = queries_.low[d][leaf];
      high_[d] = queries_.high[d][leaf];
    }
    best_->reset(count_);
    bound_.assign(static_cast<size_t>(count_), no_candidate<T>());
    radius2_.assign(static_cast<size_t>(count_), std::numeric_limits<T>::infinity());
    worst_ = no_candidate<T>();
    seed_ = -1;
    if (self_) {
      Key own = make_candidate<T>(0, 0);
      for (int64_t q = 0; q < count_; ++q) absorb(q, &own, 1);
      visit_leaf(leaf);
      seed_ = leaf;
    } else {
      seed();
    }
    walk();
    for (int64_t q = 0; q < count_; ++q) {
      best_->finish(q, sorted_.data());
      out_.write(begin_ + q, sorted_.data());
    }
  }

 private:
  struct Entry {
    Key key;  // lower bound of the squared distance, then the first row
    int plane;
    int64_t node;
  };

  void absorb(int64_t q, const Key* candidates, int64_t count) {
    Key bound = best_->absorb(q, candidates, count);
    bound_[static_cast<size_t>(q)] = bound;
    radius2_[static_cast<size_t>(q)] = candidate_distance2<T>(bound);
  }

  // Pushes the children of a node that may matter (plane is theirs), the nearest last so that it is visited first.
  void push_nodes(int plane, int64_t begin, int64_t end) {
    int64_t start = sources_.layout().starts[static_cast<size_t>(plane)];
    for (int64_t first = begin; first < end; first += 4 * lanes) {
      T distance2[4 * lanes];
      int64_t count = std::min<int64_t>(4 * lanes, end - first);
      node_distances(sources_, low_, high_, leaf_distances_.gap_period(), start + first, count, distance2);
      size_t bottom = stack_.size();
      for (int64_t i = 0; i < count; ++i) {
        int64_t node = first + i, row = sources_.first_row(plane, node);
        Key key = make_candidate<T>(distance2[i], static_cast<uint32_t>(row + 1));
        if (!(key < worst_) || sources_.first_row(plane, node + 1) == row) continue;
        size_t place = stack_.size();
        stack_.push_back({key, plane, node});
        for (; place > bottom && stack_[place - 1].key < key; --place) stack_[place] = stack_[place - 1];
        stack_[place] = {key, plane, node};
      }
    }
  }

  void walk() {
    int top = sources_.layout().planes() - 1;
    stack_.clear();
    push_nodes(top, 0, sources_.layout().sizes[static_cast<size_t>(top)]);
    while (!stack_.empty()) {
      Entry entry = stack_.back();
      stack_.pop_back();
      if (!(entry.key < worst_)) continue;
      if (entry.plane > 0) {
        push_nodes(entry.plane - 1, sources_.first_child(entry.plane, entry.node),
                   sources_.first_child(entry.plane, entry.node + 1));
      } else if (entry.node != seed_) {
        visit_leaf(entry.node);
      }
    }
  }

  // Visit a leaf near the group first, found by going down to the nearest child each time.
  void seed() {
    int plane = sources_.layout().planes() - 1;
    int64_t begin = 0, end = sources_.layout().sizes[static_cast<size_t>(plane)];
    for (;; --plane) {
      stack_.clear();
      push_nodes(plane, begin, end);
      if (stack_.empty()) return;
      int64_t node = stack_.back().node;
      if (plane == 0) {
        visit_leaf(node);
        seed_ = node;
        return;
      }
      begin = sources_.first_child(plane, node);
      end = sources_.first_child(plane, node + 1);
    }
  }

  void visit_leaf(int64_t leaf) {
    leaf_distances_.set_leaf(sources_, leaf, low_, high_);
    int64_t first = leaf_distances_.first(), count = leaf_distances_.count();
    const T* box_distance2 = leaf_distances_.box_distances(queries_, begin_, count_);
    bool changed = false;
    for (int64_t q = 0; q < count_; ++q) {
      T radius2 = radius2_[static_cast<size_t>(q)];
      if (box_distance2[q] > radius2) continue;
      T* distance2 = leaf_distances_.distances(queries_, begin_ + q, radius2);
      if (!distance2) continue;
      // A query's own row is in its list already.
      int64_t own = begin_ + q - first;
      if (self_ && own >= 0 && own < count) distance2[own] = std::numeric_limits<T>::infinity();
      int64_t packed = pack(distance2, first, count, radius2);
      if (packed == 0) continue;
      absorb(q, packed_.data(), packed);
      changed = true;
    }
    if (changed) worst_ = *std::max_element(bound_.begin(), bound_.end());
  }

  // Packs the leaf's candidates within radius2 into packed_, without branches, and returns their number.
  int64_t pack(const T* distance2, int64_t first, int64_t count, T radius2) {
    int64_t packed = 0;
    for (int64_t i = 0; i < count; ++i) {
      packed_[static_cast<size_t>(packed)] = make_candidate<T>(distance2[i], static_cast<uint32_t>(first + i + 1));
      packed += distance2[i] <= radius2;
    }
    return packed;
  }

  const StagedTree<D, T>&sources_, &queries_;
  const bool self_;
  const Output<T>& out_;
  std::unique_ptr<KBest<T>> best_;
  LeafDistances<D, T> leaf_distances_;
  std::vector<Key> sorted_, packed_;
  // The group at work.
  int64_t begin_ = 0, count_ = 0, seed_ = -1;
  T low_[D], high_[D];
  std::vector<Key> bound_;  // upper bound of each query's k-th candidate
  std::vector<T> radius2_;  // its squared distance
  Key worst_;               // the largest bound
  std::vector<Entry> stack_;
};

template <int D, typename T>
bool search_all(const Parallel& parallel, const TreeArrays<D, T>& sources, const TreeArrays<D, T>& queries, bool self,
                const double* box, Output<T> out, int64_t rows) {
  Scale<D, T> scale(box, {&sources, &queries});
  StagedTree<D, T> staged(parallel, sources, scale);
  std::unique_ptr<StagedTree<D, T>> other;
  if (!self) other = std::make_unique<StagedTree<D, T>>(parallel, queries, scale);
  const StagedTree<D, T>& groups = self ? staged : *other;
  if (!staged.consistent() || !groups.consistent()) return false;
  out.unit = scale.inverse;
  int64_t most = std::max(largest_leaf(staged), largest_leaf(groups));
  parallel.blocks(groups.leaves(), 32, [&](int64_t begin, int64_t end) {
    Walk<D, T> walk(staged, groups, scale, self, most, out);
    for (int64_t leaf = begin; leaf < end; ++leaf) walk.group(leaf);
  });
  for (int64_t row = queries.num; row < rows; ++row) out.write_none(row);
  return true;
}

ffi::Error knn(ffi::ThreadPool pool, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num, ffi::Buffer<ffi::S32> splits,
               ffi::Buffer<ffi::S32> particle_splits, ffi::AnyBuffer lower, ffi::AnyBuffer upper,
               ffi::Buffer<ffi::S32> source_rows, ffi::AnyBuffer query, ffi::Buffer<ffi::S32> query_num,
               ffi::Buffer<ffi::S32> query_splits, ffi::Buffer<ffi::S32> query_particle_splits,
               ffi::AnyBuffer query_lower, ffi::AnyBuffer query_upper, ffi::Buffer<ffi::S32> query_rows,
               ffi::AnyBuffer box, ffi::Result<ffi::AnyBuffer> radius, ffi::Result<ffi::Buffer<ffi::S32>> index,
               ffi::Span<const int64_t> plane_sizes, ffi::Span<const int64_t> query_plane_sizes, bool self) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    auto tree = [](const auto& p, const auto& n, const auto& s, const auto& ps, const auto& l, const auto& u,
                   const auto& sizes) {
      return TreeArrays<D, T>{
          p.template typed_data<T>(), read_count(n, p.dimensions()[0]), s.typed_data(),   ps.typed_data(),
          l.template typed_data<T>(), u.template typed_data<T>(),       TreeLayout(sizes)};
    };
    auto fits = [](const auto& p, const auto& s, const auto& ps, const auto& l, const auto& u, const auto& sizes) {
      TreeLayout layout(sizes);
      int64_t rows = layout.splits(), boxes = layout.nodes() * D;
      return p.dimensions().size() == 2 && p.dimensions()[1] == D && static_cast<int64_t>(s.element_count()) == rows &&
             static_cast<int64_t>(ps.element_count()) == rows && static_cast<int64_t>(l.element_count()) == boxes &&
             static_cast<int64_t>(u.element_count()) == boxes;
    };
    double period[D];
    int64_t n = pos.dimensions()[0], q = query.dimensions()[0];
    auto shape = radius->dimensions();
    auto rows_fit = [](const auto& rows, int64_t count) {
      return rows.element_count() == 0 || static_cast<int64_t>(rows.element_count()) == count;
    };
    if (!read_exact(box, D, period) || !fits(pos, splits, particle_splits, lower, upper, plane_sizes) ||
        !fits(query, query_splits, query_particle_splits, query_lower, query_upper, query_plane_sizes) ||
        query.element_type() != pos.element_type() || shape.size() != 2 || shape[0] != q ||
        index->element_count() != radius->element_count() || !rows_fit(source_rows, n) || !rows_fit(query_rows, q))
      return invalid("knn was called with arrays that do not fit together.");
    auto rows = [](const auto& buffer) { return buffer.element_count() == 0 ? nullptr : buffer.typed_data(); };
    Output<T> out{rows(source_rows), rows(query_rows), radius->typed_data<T>(), index->typed_data(), shape[1], T{1}};
    if (shape[1] == 0 || q == 0) return ffi::Error::Success();
    auto sources = tree(pos, num, splits, particle_splits, lower, upper, plane_sizes);
    auto queries =
        tree(query, query_num, query_splits, query_particle_splits, query_lower, query_upper, query_plane_sizes);
    if (!search_all<D, T>(Parallel(pool), sources, queries, self, period, out, q))
      return invalid(
          "the hierarchy th does not belong to these particles; build it with jztree.tree.zsort_and_tree from the same "
          "particles and the same boxsize, and pass the particles that it returns.");
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_knn, knn,
               ffi::Ffi::Bind()
                   .Ctx<ffi::ThreadPool>()
                   .Arg<ffi::AnyBuffer>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::AnyBuffer>()
                   .Arg<ffi::AnyBuffer>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::AnyBuffer>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::AnyBuffer>()
                   .Arg<ffi::AnyBuffer>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::AnyBuffer>()
                   .Ret<ffi::AnyBuffer>()
                   .Ret<ffi::Buffer<ffi::S32>>()
                   .Attr<ffi::Span<const int64_t>>("plane_sizes")
                   .Attr<ffi::Span<const int64_t>>("query_plane_sizes")
                   .Attr<bool>("self"));

}  // namespace jztree
