// A walk outwards (ball_walk.h). Once the queries of a group have a value, it opens no node without a smaller one.

#include "least_within.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "ball_walk.h"
#include "common/cpu/context.h"

namespace jztree {
namespace {

// The smallest value of every node.
template <int D, typename T>
std::vector<int32_t> least_of_nodes(const Parallel& parallel, const Tree<D, T>& tree, const int32_t* value) {
  const TreeLayout& layout = tree.layout;
  std::vector<int32_t> least(static_cast<size_t>(layout.nodes()));
  for (int plane = 0; plane < layout.planes(); ++plane) {
    int32_t* here = least.data() + layout.starts[static_cast<size_t>(plane)];
    const int32_t* below = plane > 0 ? least.data() + layout.starts[static_cast<size_t>(plane) - 1] : value;
    const int32_t* split = tree.splits + layout.split_start(plane);
    parallel.blocks(layout.sizes[static_cast<size_t>(plane)], 512, [&](int64_t begin, int64_t end) {
      for (int64_t node = begin; node < end; ++node) {
        here[node] = LeastWithin<D, T>::none;
        for (int64_t i = split[node]; i < split[node + 1]; ++i) here[node] = std::min(here[node], below[i]);
      }
    });
  }
  return least;
}

class LeastOf {
 public:
  static constexpr bool of_numbers = false;

  LeastOf(const int32_t* value, const int32_t* of_nodes) : value_(value), of_nodes_(of_nodes) {}

  void reset(int64_t count) {
    // Lanes past the last query ask for nothing.
    least_.assign(static_cast<size_t>(count + lanes), std::numeric_limits<int32_t>::min());
    std::fill_n(least_.begin(), count, std::numeric_limits<int32_t>::max());
  }

  void node(int64_t node, int64_t, int64_t, int64_t) {
    for (int32_t& least : least_) least = std::min(least, of_nodes_[node]);
  }
  void rows(int64_t i, int64_t first, uint32_t chosen, int64_t) {
    int32_t& least = least_[static_cast<size_t>(i)];
    for (; chosen != 0; chosen &= chosen - 1) least = std::min(least, value_[first + __builtin_ctz(chosen)]);
  }

  void most_left(int64_t) {}
  bool needs(int64_t node) const {
    uint32_t any = 0;
    for (size_t block = 0; block + lanes <= least_.size(); block += lanes)
      any |= asking(static_cast<int64_t>(block), node);
    return any != 0;
  }
  bool done() const { return false; }
  uint32_t asking(int64_t block, int64_t node) const {
    Lanes<int32_t> least;
    load(least_.data() + block, least);
    return lanes_below(Lanes<int32_t>(of_nodes_[node]), least);
  }

  int32_t least(int64_t i) const { return least_[static_cast<size_t>(i)]; }

 private:
  const int32_t *value_, *of_nodes_;
  std::vector<int32_t> least_;  // of each query of the group
};

template <int D, typename T>
void least_within(const Parallel& parallel, const LeastWithin<D, T>& in) {
  double box[D];
  in.box.read(box);
  double radius = in.radius[0];
  const Staged<D, T> staged(parallel, in.sources, in.queries, false, box);
  const std::vector<int32_t> of_nodes = least_of_nodes(parallel, in.sources, in.value);
  auto place = [&](int64_t query) { return in.query_rows ? in.query_rows[query] : query; };
  parallel.blocks(staged.queries->leaves(), 32, [&](int64_t begin, int64_t end) {
    BallWalk<D, T> walk(staged, 1);
    LeastOf found(in.value, of_nodes.data());
    for (int64_t leaf = begin; leaf < end; ++leaf) {
      walk.set_group(leaf, [&](int64_t, int64_t) { return radius; });
      found.reset(walk.count());
      walk.walk_outwards(found);
      for (int64_t i = 0; i < walk.count(); ++i) in.least[place(walk.begin() + i)] = found.least(i);
    }
  });
  for (int64_t query = in.queries.num(); query < in.q(); ++query) in.least[place(query)] = LeastWithin<D, T>::none;
}

}  // namespace

JZTREE_KERNEL(least_within, LeastWithin);

}  // namespace jztree
