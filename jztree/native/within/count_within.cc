// A thread processes one group of queries after the other and walks the tree once for all their radii (ball_walk.h). If
// a node is in the same ball of every query of a group, its number and weight are added as a whole. Weights are added
// in float64, in the order of rows, so sums have the same bits with any number of threads.

#include "count_within.h"

#include <cstdint>
#include <vector>

#include "ball_walk.h"
#include "common/cpu/context.h"
#include "common/cpu/node_values.h"

namespace jztree {
namespace {

// The number or weight in each ball of each query of a group. A part that all queries share is stored once.
template <typename T, bool Weighted>
class Tally {
 public:
  static constexpr bool of_numbers = !Weighted, together = true;

  // weight: of rows, if weights are used. node_weight: of nodes.
  Tally(int64_t m, const T* weight, const double* node_weight) : m_(m), weight_(weight), node_weight_(node_weight) {}

  void reset(int64_t count) {
    count_.assign(static_cast<size_t>((count + 1) * m_), 0);
    if (Weighted) sum_.assign(static_cast<size_t>((count + 1) * m_), 0.);
  }

  // The first entry is the common part.
  void node(int64_t node, int64_t first, int64_t end, int64_t ball) {
    count_[static_cast<size_t>(ball)] += static_cast<int32_t>(end - first);
    if (Weighted) sum_[static_cast<size_t>(ball)] += node_weight_[node];
  }
  void number(int64_t i, int32_t number, int64_t ball) { count_[static_cast<size_t>((i + 1) * m_ + ball)] += number; }
  void rows(int64_t i, int64_t first, uint32_t members, int64_t ball) {
    size_t place = static_cast<size_t>((i + 1) * m_ + ball);
    count_[place] += __builtin_popcount(members);
    for (; members != 0; members &= members - 1)
      sum_[place] += static_cast<double>(weight_[first + __builtin_ctz(members)]);
  }

  // Write the results within each radius of the i-th query.
  void write(int64_t i, int32_t* count, T* sum) const {
    int32_t number = 0;
    double weight = 0;
    for (int64_t ball = 0; ball < m_; ++ball) {
      size_t common = static_cast<size_t>(ball), own = static_cast<size_t>((i + 1) * m_ + ball);
      count[ball] = number += count_[common] + count_[own];
      if (Weighted) sum[ball] = static_cast<T>(weight += sum_[common] + sum_[own]);
    }
  }

 private:
  const int64_t m_;
  const T* weight_;
  const double* node_weight_;
  std::vector<int32_t> count_;
  std::vector<double> sum_;
};

template <int D, typename T, bool Weighted>
void count_all(const Parallel& parallel, const CountWithin<D, T>& in) {
  double box[D];
  in.box.read(box);
  Staged<D, T> staged(parallel, in.sources, in.queries, in.self, box);
  int64_t m = in.m();
  std::vector<double> node_weight(static_cast<size_t>(Weighted ? in.sources.layout.nodes() : 0));
  if (Weighted) join_nodes(parallel, in.sources, in.weight.data, node_weight.data(), AddedInOrder{});
  using Tallied = Tally<T, Weighted>;
  auto write = [&](const Tallied& tally, int64_t i, int64_t query) {
    int64_t row = in.queries.row_of(query);
    tally.write(i, in.count + row * m, Weighted ? in.sum + row * m : nullptr);
  };
  parallel.blocks(staged.queries->leaves(), 32, [&](int64_t begin, int64_t end) {
    BallWalk<D, T> walk(staged, m);
    Tallied tally(m, in.weight.data, node_weight.data());
    for (int64_t leaf = begin; leaf < end; ++leaf) {
      int64_t first = staged.queries->leaf_row(leaf);
      walk.set_group(leaf, [&](int64_t i, int64_t ball) {
        return in.radius[CountWithin<D, T>::first_radius(in.radius.count, m, in.queries.row_of(first + i)) + ball];
      });
      tally.reset(walk.count());
      walk.walk(tally);
      for (int64_t i = 0; i < walk.count(); ++i) write(tally, i, first + i);
    }
  });
  Tallied nothing(m, in.weight.data, nullptr);
  nothing.reset(1);
  for (int64_t query = in.queries.num(); query < in.q(); ++query) write(nothing, 0, query);
}

template <int D, typename T>
void count_within(const Parallel& parallel, const CountWithin<D, T>& in) {
  if (in.weighted()) {
    count_all<D, T, true>(parallel, in);
  } else {
    count_all<D, T, false>(parallel, in);
  }
}

}  // namespace

JZTREE_KERNEL(count_within, CountWithin);

}  // namespace jztree
