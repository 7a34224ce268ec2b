#include "select_boxes.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/cpu/context.h"
#include "common/space.h"
#include "rank_tree.h"

namespace jztree {
namespace {

// For each box, the ranks that must receive it, in order.
template <int D, typename T>
std::vector<std::vector<int32_t>> ranks_to_know(const Parallel& parallel, const SelectBoxes<D, T>& in) {
  double period[D];
  in.box.read(period);
  const Space<D> space(period, T{});
  const RankTree<D, T> ranks(parallel, in.known, in.known_counts);
  const int64_t me = *in.rank;
  std::vector<std::vector<int32_t>> found(static_cast<size_t>(in.own.count));
  parallel.blocks(in.own.count, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (!(in.radius[i] >= 0) || in.own.empty(i)) continue;
      ranks.each_within(space, in.own.low(i), in.own.high(i), space.enlarged(in.radius[i]), me, [&](int64_t rank) {
        if (rank > me || !in.higher_only) found[static_cast<size_t>(i)].push_back(static_cast<int32_t>(rank));
      });
    }
  });
  return found;
}

template <int D, typename T>
void select_boxes(const Parallel& parallel, const SelectBoxes<D, T>& in) {
  const std::vector<std::vector<int32_t>> found = ranks_to_know(parallel, in);
  std::fill(in.counts, in.counts + in.known.ranks, 0);
  for (const auto& ranks : found)
    for (int32_t rank : ranks) ++in.counts[rank];
  int64_t place = 0, room = in.order.rows();
  std::vector<int64_t> next(static_cast<size_t>(in.known.ranks));
  for (size_t rank = 0; rank < next.size(); ++rank) {
    next[rank] = place;
    place += in.counts[rank];
  }
  for (size_t i = 0; i < found.size(); ++i)
    for (int32_t rank : found[i])
      if (int64_t place_of_box = next[static_cast<size_t>(rank)]++; place_of_box < room)
        in.order[place_of_box] = static_cast<int32_t>(i);
  std::fill(in.order + std::min(place, room), in.order + room, -1);
}

}  // namespace

JZTREE_KERNEL(select_boxes, SelectBoxes);

}  // namespace jztree
