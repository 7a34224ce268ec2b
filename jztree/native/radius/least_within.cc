// A walk (ball_walk.h) that looks at every pair within the radius, so it is for queries that have few sources there.

#include "least_within.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ball_walk.h"
#include "common/cpu/context.h"

namespace jztree {
namespace {

struct LeastOf {
  static constexpr bool of_numbers = false, together = false;

  const int32_t* value;
  std::vector<int32_t>& least;  // of each query of the group

  void rows(int64_t i, int64_t first, uint32_t chosen, int64_t) {
    int32_t& smallest = least[static_cast<size_t>(i)];
    for (; chosen != 0; chosen &= chosen - 1) smallest = std::min(smallest, value[first + __builtin_ctz(chosen)]);
  }
};

template <int D, typename T>
void least_within(const Parallel& parallel, const LeastWithin<D, T>& in) {
  double box[D];
  in.box.read(box);
  double radius = in.radius[0];
  Staged<D, T> staged(parallel, in.sources, in.queries, false, box);
  auto place = [&](int64_t query) { return in.query_rows ? in.query_rows[query] : query; };
  parallel.blocks(staged.queries->leaves(), 32, [&](int64_t begin, int64_t end) {
    BallWalk<D, T> walk(staged, 1);
    for (int64_t leaf = begin; leaf < end; ++leaf) {
      walk.set_group(leaf, [&](int64_t, int64_t) { return radius; });
      std::vector<int32_t> least(static_cast<size_t>(walk.count()), LeastWithin<D, T>::none);
      LeastOf visit{in.value, least};
      walk.walk(visit);
      for (int64_t i = 0; i < walk.count(); ++i) in.least[place(walk.begin() + i)] = least[static_cast<size_t>(i)];
    }
  });
  for (int64_t query = in.queries.num(); query < in.q(); ++query) in.least[place(query)] = LeastWithin<D, T>::none;
}

}  // namespace

JZTREE_KERNEL(least_within, LeastWithin);

}  // namespace jztree
