// A walk outwards (ball_walk.h). When every query of a group has a value, the walk skips nodes without a smaller value.

#include "least_within.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "ball_walk.h"
#include "common/cpu/context.h"
#include "common/cpu/node_values.h"

namespace jztree {
namespace {

struct SmallestValue {
  template <typename Parts>
  int32_t operator()(const Parts& parts, int64_t begin, int64_t end) const {
    int32_t minimum = std::numeric_limits<int32_t>::max();
    for (int64_t i = begin; i < end; ++i) minimum = std::min(minimum, parts[i]);
    return minimum;
  }
};

class LeastOf {
 public:
  static constexpr bool of_numbers = false;

  LeastOf(const int32_t* value, const int32_t* of_nodes) : value_(value), of_nodes_(of_nodes) {}

  void reset(int64_t count) {
    // Lanes after the last query need no sources.
    minima_.assign(static_cast<size_t>(count + lanes), std::numeric_limits<int32_t>::min());
    std::fill_n(minima_.begin(), count, std::numeric_limits<int32_t>::max());
  }

  void node(int64_t node, int64_t, int64_t, int64_t) {
    for (int32_t& minimum : minima_) minimum = std::min(minimum, of_nodes_[node]);
  }
  void rows(int64_t i, int64_t first, uint32_t members, int64_t) {
    int32_t& minimum = minima_[static_cast<size_t>(i)];
    for (; members != 0; members &= members - 1) minimum = std::min(minimum, value_[first + __builtin_ctz(members)]);
  }

  void most_left(int64_t) {}
  bool needs(int64_t node) const {
    uint32_t any = 0;
    for (size_t block = 0; block + lanes <= minima_.size(); block += lanes)
      any |= asking(static_cast<int64_t>(block), node);
    return any != 0;
  }
  bool done() const { return false; }
  uint32_t asking(int64_t block, int64_t node) const {
    Lanes<int32_t> minima;
    load(minima_.data() + block, minima);
    return lanes_below(Lanes<int32_t>(of_nodes_[node]), minima);
  }

  int32_t minimum(int64_t i) const { return minima_[static_cast<size_t>(i)]; }

 private:
  const int32_t *value_, *of_nodes_;
  std::vector<int32_t> minima_;  // of each query of the group
};

template <int D, typename T>
void least_within(const Parallel& parallel, const LeastWithin<D, T>& in) {
  double box[D];
  in.box.read(box);
  double radius = in.radius[0];
  const Staged<D, T> staged(parallel, in.sources, in.queries, false, box);
  std::vector<int32_t> of_nodes(static_cast<size_t>(in.sources.layout.nodes()));
  join_nodes(parallel, in.sources, in.value, of_nodes.data(), SmallestValue{});
  parallel.blocks(staged.queries->leaves(), 32, [&](int64_t begin, int64_t end) {
    BallWalk<D, T> walk(staged, 1);
    LeastOf found(in.value, of_nodes.data());
    for (int64_t leaf = begin; leaf < end; ++leaf) {
      walk.set_group(leaf, [&](int64_t, int64_t) { return radius; });
      found.reset(walk.count());
      walk.walk_outwards(found);
      for (int64_t i = 0; i < walk.count(); ++i) in.minima[in.queries.row_of(walk.begin() + i)] = found.minimum(i);
    }
  });
  for (int64_t query = in.queries.num(); query < in.q(); ++query)
    in.minima[in.queries.row_of(query)] = LeastWithin<D, T>::none;
}

}  // namespace

JZTREE_KERNEL(least_within, LeastWithin);

}  // namespace jztree
