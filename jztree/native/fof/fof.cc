// Units are the highest nodes that are smaller than the linking length, so that all their particles are linked to each
// other ("dense"), and the leaves outside these nodes. First the particles within each unit are linked, on one thread
// per unit. Then every unit is linked to the later units in z-order that are within the linking length. One walk from
// the top finds these units for all children of a node:
// * If every pair of the two units is within the linking length, they are joined without testing their particles.
// * If each unit is one set, and both are in the same set, the pair is skipped. If they are in different sets, one link
//   is enough.
// * Otherwise, the particles of each unit near the other's box are tested.
// So the work shrinks when the linking length grows above the size of leaves. Joins go to a lock-free union-find.

#include "fof.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "common/cpu/context.h"
#include "common/cpu/leaf_distances.h"
#include "common/cpu/node_values.h"
#include "common/cpu/row_box.h"
#include "common/cpu/spares.h"
#include "common/cpu/staged_tree.h"
#include "link_lanes.h"
#include "near_units.h"
#include "union_find.h"

namespace jztree {
namespace {

// Rule: see link_rule.h.
template <int D, typename T, typename Rule>
class Linker {
 public:
  Linker(const Parallel& parallel, const T* pos, const StagedTree<D, T>& tree, const Scale<D, T>& scale,
         const Rule& rule, UnionFind& sets)
      : parallel_(parallel),
        pos_(pos),
        tree_(tree),
        scale_(scale),
        rule_(rule),
        sets_(sets),
        leaf_capacity_(largest_leaf(tree)),
        dense_(static_cast<size_t>(tree.layout().nodes())),
        one_set_(static_cast<size_t>(tree.layout().nodes())) {}

  void run() {
    find_units();
    int64_t count = static_cast<int64_t>(units_.size());
    Spares<Worker> workers;
    auto make = [&] { return Worker(*this); };
    workers.blocks(parallel_, count, 64, make, [&](Worker& worker, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) worker.link_within(units_[static_cast<size_t>(i)]);
    });
    workers.blocks(parallel_, count, 64, make, [&](Worker& worker, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end;) {
        const int64_t first = i;
        i = end_of_siblings(i, end);
        worker.link_to_later(first, i);
      }
    });
  }

 private:
  using Half = typename Rule::Half;

  size_t flat(Node node) const {
    return static_cast<size_t>(tree_.layout().starts[static_cast<size_t>(node.plane)] + node.index);
  }
  // The largest half of the node's rows.
  Half half(Node node) const { return rule_.most_of(static_cast<int64_t>(flat(node))); }
  int64_t begin(Node node) const { return tree_.first_row(node.plane, node.index); }
  int64_t end(Node node) const { return tree_.first_row(node.plane, node.index + 1); }

  void box(size_t flat, T* low, T* high) const {
    for (int d = 0; d < D; ++d) {
      low[d] = tree_.low[d][flat];
      high[d] = tree_.high[d][flat];
    }
  }

  // Whether all pairs of the two nodes' particles are surely linked.
  bool all_linked(size_t a, size_t b) const {
    T alow[D], ahigh[D], blow[D], bhigh[D];
    box(a, alow, ahigh);
    box(b, blow, bhigh);
    const Half half = rule_.least_of(static_cast<int64_t>(a)), other = rule_.least_of(static_cast<int64_t>(b));
    return rule_.all_within(alow, ahigh, blow, bhigh, scale_.period, rule_.surely_linked2(half, other));
  }

  void find_units() {
    int64_t nodes = tree_.layout().nodes();
    parallel_.blocks(nodes, 1 << 12, [&](int64_t first, int64_t last) {
      for (size_t node = static_cast<size_t>(first); node < static_cast<size_t>(last); ++node)
        dense_[node] = all_linked(node, node);
    });
    int top = tree_.layout().planes() - 1;
    for (int64_t i = 0; i < tree_.layout().sizes[static_cast<size_t>(top)]; ++i) add_units({top, i});
  }

  void add_units(Node node) {
    if (begin(node) == end(node)) return;
    if (node.plane == 0 || dense_[flat(node)]) {
      units_.push_back(node);
      return;
    }
    for (int64_t i = tree_.first_child(node.plane, node.index); i < tree_.first_child(node.plane, node.index + 1); ++i)
      add_units({node.plane - 1, i});
  }

  // The end of the units, starting at `unit` and before `end`, that are children of the same node.
  int64_t end_of_siblings(int64_t unit, int64_t end) const {
    const Node first = units_[static_cast<size_t>(unit)];
    const int64_t behind = tree_.end_of_siblings(first.plane, first.index);
    auto ends_family = [&](const Node& node) { return node.plane != first.plane || node.index >= behind; };
    return std::find_if(units_.begin() + unit, units_.begin() + end, ends_family) - units_.begin();
  }

  // One thread's work arrays.
  class Worker {
   public:
    explicit Worker(Linker& linker)
        : linker_(linker),
          tree_(linker.tree_),
          rule_(linker.rule_),
          sets_(linker.sets_),
          distances_(linker.scale_, linker.leaf_capacity_),
          local_(static_cast<size_t>(linker.leaf_capacity_)),
          near_(linker.tree_, linker.rule_, linker.dense_, distances_.gap_period()) {}

    // Set the parents of the unit's rows. No other thread reads them yet.
    void link_within(Node unit) {
      int64_t first = linker_.begin(unit), last = linker_.end(unit);
      size_t flat = linker_.flat(unit);
      if (linker_.dense_[flat]) {
        for (int64_t row = first; row < last; ++row) sets_.set(row, first);
        linker_.one_set_[flat] = 1;
      } else {
        linker_.one_set_[flat] = link_leaf(unit.index, first, last - first) == 1;
      }
    }

    // Link each of some units, which are near each other, to those after it.
    void link_to_later(int64_t first, int64_t last) {
      T low[D], high[D];
      no_box<D>(low, high);
      Half half = linker_.half(unit(first));
      for (int64_t i = first; i < last; ++i) {
        T unit_low[D], unit_high[D];
        linker_.box(linker_.flat(unit(i)), unit_low, unit_high);
        include_box<D>(unit_low, unit_high, low, high);
        half = Rule::larger_of(half, linker_.half(unit(i)));
      }
      near_.find(low, high, half, linker_.end(unit(first)));
      for (int64_t i = first; i < last; ++i) {
        linker_.box(linker_.flat(unit(i)), low, high);
        near_.each(low, high, linker_.half(unit(i)), linker_.end(unit(i)),
                   [&](Node later) { link_units(unit(i), later); });
      }
    }

   private:
    Node unit(int64_t i) const { return linker_.units_[static_cast<size_t>(i)]; }

    // distance2: the computed, scaled value for two rows that find_near has found near each other.
    bool linked(T distance2, int64_t a, int64_t b) const {
      return are_linked(rule_, distance2, linker_.pos_ + a * D, linker_.pos_ + b * D, a, b);
    }

    // Link a leaf within and return its number of sets.
    int64_t link_leaf(int64_t leaf, int64_t first, int64_t count) {
      T low[D], high[D];
      linker_.box(static_cast<size_t>(leaf), low, high);
      distances_.set_leaf(tree_, leaf, low, high);
      for (int64_t i = 0; i < count; ++i) local_[static_cast<size_t>(i)] = i;
      int64_t sets = count;
      const Half half = rule_.most_of(leaf);
      distances_.each_near_pair(rule_.possibly_linked2(half, half), [&](int64_t i, int64_t j, T distance2) {
        if (linked(distance2, first + i, first + j)) sets -= unite_local(i, j);
        return sets > 1;
      });
      for (int64_t i = 0; i < count; ++i) sets_.set(first + i, first + find_local(i));
      return sets;
    }

    int64_t find_local(int64_t i) {
      while (local_[static_cast<size_t>(i)] != i) i = local_[static_cast<size_t>(i)];
      return i;
    }

    int64_t unite_local(int64_t i, int64_t j) {
      int64_t a = find_local(i), b = find_local(j);
      if (a == b) return 0;
      local_[static_cast<size_t>(std::max(a, b))] = std::min(a, b);
      return 1;
    }

    void link_units(Node a, Node b) {
      size_t flat_a = linker_.flat(a), flat_b = linker_.flat(b);
      bool one_a = linker_.one_set_[flat_a], one_b = linker_.one_set_[flat_b];
      int64_t first_a = linker_.begin(a), first_b = linker_.begin(b);
      if (linker_.all_linked(flat_a, flat_b)) {
        if (!one_a)
          for (int64_t row = first_a + 1; row < linker_.end(a); ++row) sets_.unite(row, first_b);
        if (!one_b)
          for (int64_t row = first_b + 1; row < linker_.end(b); ++row) sets_.unite(row, first_a);
        sets_.unite(first_a, first_b);
      } else if (one_b || !one_a) {
        link_nodes(a, b, one_a, one_b ? first_b : -1);
      } else {
        link_nodes(b, a, one_b, first_a);
      }
    }

    // Test the particles of `from` against those of `to`. from_one: `from` is one set, so a single link is enough if
    // `to` is one set as well. to_root: a row of `to` if it is one set, otherwise -1. Returns whether no more tests are
    // needed.
    bool link_nodes(Node from, Node to, bool from_one, int64_t to_root) {
      if (from_one && to_root >= 0 && sets_.find(linker_.begin(from)) == sets_.find(to_root)) return true;
      if (from.plane == 0 && to.plane == 0) return link_leaves(from.index, to.index, from_one, to_root);
      bool split_from = from.plane > to.plane;
      Node whole = split_from ? from : to, other = split_from ? to : from;
      T low[D], high[D];
      linker_.box(linker_.flat(other), low, high);
      const Half half = linker_.half(other);
      const int64_t start = tree_.layout().starts[static_cast<size_t>(whole.plane) - 1];
      const int64_t end = tree_.first_child(whole.plane, whole.index + 1);
      for (int64_t i = tree_.first_child(whole.plane, whole.index); i < end; i += lanes) {
        const int64_t count = std::min(lanes, end - i);
        auto distance2 = [&] { return possibly_linked2(rule_, half, rule_.nodes_from(start + i)); };
        uint32_t reached = near_nodes(tree_, low, high, distances_.gap_period(), start + i, count, distance2);
        for (; reached != 0; reached &= reached - 1) {
          const Node child{whole.plane - 1, i + __builtin_ctz(reached)};
          if (linker_.begin(child) == linker_.end(child)) continue;
          if (split_from ? link_nodes(child, to, from_one, to_root) : link_nodes(from, child, from_one, to_root))
            return true;
        }
      }
      return false;
    }

    bool link_leaves(int64_t from, int64_t to, bool from_one, int64_t to_root) {
      T low[D], high[D];
      linker_.box(static_cast<size_t>(from), low, high);
      distances_.set_leaf(tree_, to, low, high);
      const Half half = rule_.most_of(to);
      int64_t begin = tree_.leaf_row(from), end = tree_.leaf_row(from + 1);
      for (int64_t block = begin; block < end; block += lanes) {
        uint32_t open =
            distances_.within(tree_, block, end - block, possibly_linked2(rule_, half, rule_.rows_from(block)));
        for (; open != 0; open &= open - 1)
          if (link_row(block + __builtin_ctz(open), half, from_one, to_root)) return true;
      }
      return false;
    }

    // Link a row to the current leaf of `distances_`, which has the largest half `leaf_half`.
    bool link_row(int64_t row, Half leaf_half, bool from_one, int64_t to_root) {
      if (to_root >= 0 && sets_.find(row) == sets_.find(to_root)) return false;
      bool enough = false;
      const T most2 = rule_.possibly_linked2(rule_.of_row(row), leaf_half);
      distances_.each_near(tree_, row, most2, [&](int64_t neighbour, T distance2) {
        if (!linked(distance2, row, neighbour)) return true;
        sets_.unite(row, neighbour);
        enough = to_root >= 0;
        return !enough;
      });
      return enough && from_one;
    }

    Linker& linker_;
    const StagedTree<D, T>& tree_;
    const Rule& rule_;
    UnionFind& sets_;
    LeafDistances<D, T> distances_;
    std::vector<int64_t> local_;
    NearUnits<D, T, Rule> near_;
  };

  const Parallel& parallel_;
  const T* pos_;
  const StagedTree<D, T>& tree_;
  const Scale<D, T>& scale_;
  const Rule& rule_;
  UnionFind& sets_;
  const int64_t leaf_capacity_;
  std::vector<uint8_t> dense_;    // [node]
  std::vector<uint8_t> one_set_;  // [node], for units: whether linking within has made them one set
  std::vector<Node> units_;       // in z-order
};

// The lengths of rows and nodes, if each particle has one. Arrays have space for whole blocks of lanes.
template <int D, typename T>
class StagedLengths {
 public:
  StagedLengths(const Parallel& parallel, const Friends<D, T>& in, const Scale<D, T>& scale) : lengths_{in.rlink} {
    if (!lengths_.of_each()) return;
    const int64_t num = in.tree.num(), nodes = in.tree.layout.nodes();
    row_ = Scratch<T>(num + lanes);
    parallel.blocks(num, 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) row_[row] = MeanLinkRule<D, T>::staged_half(in.rlink[row], scale);
    });
    std::fill_n(row_.get() + num, lanes, T{0});
    auto join = [&](auto better, T worst, Scratch<T>& joined) {
      joined = Scratch<T>(nodes + lanes);
      join_nodes(parallel, in.tree, row_.get(), joined.get(), [=](auto parts, int64_t begin, int64_t end) {
        return std::accumulate(parts + begin, parts + end, worst, better);
      });
      std::fill_n(joined.get() + nodes, lanes, T{0});
    };
    join(larger<T>, T{0}, largest_);
    join(smaller<T>, std::numeric_limits<T>::infinity(), least_);
    lengths_ = {in.rlink, row_.get(), largest_.get(), least_.get()};
  }

  const LinkLengths<T>& lengths() const { return lengths_; }

 private:
  LinkLengths<T> lengths_;
  Scratch<T> row_, largest_, least_;
};

// Labels in z-order: the smallest z-ordered row of the group.
void write_labels(const Parallel& parallel, UnionFind& sets, int64_t num, int32_t* label) {
  parallel.blocks(num, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) label[row] = sets.find(row);
  });
}

// Labels in the order given by `rows`, which maps z-ordered rows: the smallest mapped row of the group.
void write_mapped_labels(const Parallel& parallel, UnionFind& sets, const int32_t* rows, int64_t num, int32_t* label) {
  Scratch<std::atomic<int32_t>> smallest(num);
  parallel.blocks(num, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) smallest[row].store(rows[row], std::memory_order_relaxed);
  });
  // A minimum does not depend on the order of the threads.
  parallel.blocks(num, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::atomic<int32_t>& smallest_row = smallest[sets.find(row)];
      int32_t current = smallest_row.load(std::memory_order_relaxed);
      while (rows[row] < current &&
             !smallest_row.compare_exchange_weak(current, rows[row], std::memory_order_relaxed)) {
      }
    }
  });
  parallel.blocks(num, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      label[rows[row]] = smallest[sets.find(row)].load(std::memory_order_relaxed);
  });
}

template <int D, typename T>
void fof(const Parallel& parallel, const Friends<D, T>& in) {
  const RowTree<D, T>& tree = in.tree;
  int64_t num = tree.num();
  double period[D];
  in.box.read(period);
  Scale<D, T> scale(period, open_span(period, tree, tree).template for_scale<T>());
  StagedTree<D, T> staged(parallel, tree, scale);
  UnionFind sets(num);
  const StagedLengths<D, T> staged_lengths(parallel, in, scale);
  const LinkLengths<T>& lengths = staged_lengths.lengths();
  const DistanceRule<D, T> rule(staged.wrapped(), staged.kept(), scale);
  auto link = [&](const auto& by) {
    Linker<D, T, std::decay_t<decltype(by)>>(parallel, tree.pos, staged, scale, by, sets).run();
  };
  if (lengths.of_each()) {
    link(MeanLinkRule<D, T>(lengths, rule));
  } else {
    link(LinkRule<D, T>(lengths, rule));
  }
  if (tree.rows) {
    write_mapped_labels(parallel, sets, tree.rows, num, in.label);
  } else {
    write_labels(parallel, sets, num, in.label);
  }
  for (int64_t row = num; in.filled && row < tree.pos.rows(); ++row) {
    int64_t place = tree.row_of(row);
    in.label[place] = static_cast<int32_t>(place);
  }
}

}  // namespace

JZTREE_KERNEL(fof, Friends);

}  // namespace jztree
