// Tasks are nodes of a plane of the first set, in blocks that do not depend on the number of threads. Each task has a
// separate table (pair_table.h). Tables of integers are summed in any order, weighted sums always in the same order.

#include "pair_counts.h"

#include <cmath>
#include <limits>
#include <mutex>
#include <optional>
#include <vector>

#include "common/cpu/context.h"
#include "common/cpu/leaf_distances.h"
#include "common/cpu/progress.h"
#include "pair_walk.h"

namespace jztree {
namespace {

// This number of nodes is enough to keep threads busy until the end.
constexpr int64_t enough_nodes = 1024;
// The number of tables of weighted sums that are kept until all tasks are done. More tables would hardly help.
constexpr int64_t most_tables = 256;

template <typename T, template <typename> class Cells, typename Edge>
EdgeTable<T, Cells> edge_table(const Lengths& edges, const Edge& edge) {
  std::vector<PairEdge<T>> found;
  for (int64_t i = 0; i < edges.count; ++i) found.push_back(edge(edges[i]));
  return EdgeTable<T, Cells>(found);
}

template <PairMode Mode, int D, typename T>
class Counter {
 public:
  Counter(const Parallel& parallel, const PairCounts<D, T>& in, const PairProblem<D, T>& problem)
      : parallel_(parallel), problem_(problem), in_(in), total_(table()) {
    const TreeLayout& layout = problem.one.tree.layout();
    plane_ = layout.planes() - 1;
    while (plane_ > 0 && layout.sizes[static_cast<size_t>(plane_)] < enough_nodes) --plane_;
    nodes_ = layout.sizes[static_cast<size_t>(plane_)];
  }

  const PairTable& run() {
    in_.weighted() ? add_in_order() : add_in_any_order();
    return total_;
  }

 private:
  PairTable table() const { return {in_.rows(), problem_.first.count, problem_.second.count, in_.weighted()}; }

  void count(int64_t begin, int64_t end, PairTable& table) const {
    PairWalk<Mode, D, T> walk(problem_, table);
    for (int64_t node = begin; node < end; ++node) {
      const int64_t particles = problem_.one.count(plane_, node);
      if (particles == 0) continue;
      in_.self ? walk.with_later(plane_, node) : walk.with_all(plane_, node);
      particles_done().fetch_add(particles, std::memory_order_relaxed);
    }
    table.leave();
  }

  void add_in_any_order() {
    std::mutex mutex;
    parallel_.blocks(nodes_, 4, [&](int64_t begin, int64_t end) {
      PairTable mine = table();
      count(begin, end, mine);
      std::lock_guard<std::mutex> lock(mutex);
      total_.add(mine);
    });
  }

  void add_in_order() {
    int64_t tasks = std::min(nodes_, most_tables);
    std::vector<std::optional<PairTable>> tables(static_cast<size_t>(tasks));
    parallel_.blocks(tasks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        tables[static_cast<size_t>(task)].emplace(table());
        count(nodes_ * task / tasks, nodes_ * (task + 1) / tasks, *tables[static_cast<size_t>(task)]);
      }
    });
    for (const std::optional<PairTable>& one : tables) total_.add(*one);
  }

  const Parallel& parallel_;
  const PairProblem<D, T>& problem_;
  const PairCounts<D, T>& in_;
  PairTable total_;
  int plane_;
  int64_t nodes_;
};

// Each pair of one set was found once, but counts in both orders.
template <int D, typename T>
void write_results(const PairTable& table, const PairCounts<D, T>& in) {
  int64_t orders = in.self ? 2 : 1, sighted = in.mode != PairMode::distance, second = in.second_bins();
  for (int64_t row = 0; row < in.rows(); ++row)
    for (int64_t bin = 0; bin < in.bins(); ++bin) {
      int64_t place = row * in.bins() + bin, i = bin / second + 1, j = sighted ? bin % second + 1 : 0;
      uint64_t count = static_cast<uint64_t>(orders * table.count(row, i, j));
      in.count[place * 2] = static_cast<uint32_t>(count);
      in.count[place * 2 + 1] = static_cast<uint32_t>(count >> 32);
      if (in.weighted()) in.sum_words().put(place, static_cast<double>(orders) * table.sum(row, i, j));
    }
}

template <PairMode Mode, int D, typename T>
void count_pairs(const Parallel& parallel, const PairCounts<D, T>& in, const PairProblem<D, T>& problem) {
  if constexpr (Mode == PairMode::distance || D == 2 || D == 3) {
    Counter<Mode, D, T> counter(parallel, in, problem);
    write_results(counter.run(), in);
  } else {
    throw Refusal("counts along a line of sight need 2 or 3 dimensions.");
  }
}

template <int D, typename T>
void pair_counts(const Parallel& parallel, const PairCounts<D, T>& in) {
  double period[D];
  in.box.read(period);
  const int axis = in.mode == PairMode::distance ? D - 1 : std::min(in.axis, D - 1);
  const Scale<D, T> scale(period, open_span(period, in.one.tree, in.other.tree).template for_scale<T>());
  const Scale<D, T> turned_scale = turned(scale, axis);
  const PairSide<D, T> one(parallel, in.one, scale, axis);
  std::optional<PairSide<D, T>> second_side;
  if (!in.self) second_side.emplace(parallel, in.other, scale, axis);
  const PairSide<D, T>& other = in.self ? one : *second_side;
  const DistanceRule<D, T> distances(one.tree.wrapped() || other.tree.wrapped(), one.tree.kept() && other.tree.kept(),
                                     scale);
  const PairRule<D, T> rule(distances, in.mode, in.axis);
  const auto first = edge_table<T, OctaveCells>(in.edges, [&](double edge) { return rule.first_edge(edge); });
  const auto second = edge_table<T, EqualCells>(in.edges_b, [&](double edge) { return rule.second_edge(edge); });
  const int64_t max_leaf = std::max(largest_leaf(one.tree), largest_leaf(other.tree));
  const PairProblem<D, T> problem{one, other, turned_scale, rule, first, second, max_leaf, in.separations};
  switch (in.mode) {
    case PairMode::distance: return count_pairs<PairMode::distance>(parallel, in, problem);
    case PairMode::across_along: return count_pairs<PairMode::across_along>(parallel, in, problem);
    case PairMode::distance_cosine: return count_pairs<PairMode::distance_cosine>(parallel, in, problem);
  }
}

}  // namespace

JZTREE_KERNEL(pair_counts, PairCounts);

}  // namespace jztree
