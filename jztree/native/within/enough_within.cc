// A walk outwards (ball_walk.h) for each group of queries. It counts whole nodes without opening them, so a large
// radius only takes a few nodes. With a small radius, it ends when there are enough sources.

#include "enough_within.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "ball_walk.h"
#include "common/cpu/context.h"

namespace jztree {
namespace {

// Counts the sources of each query of a group, until there are enough.
class TallyUpTo {
 public:
  static constexpr bool of_numbers = true;

  explicit TallyUpTo(int64_t min_count) : min_count_(min_count) {}

  void reset(int64_t count) {
    // Lanes after the last query need no sources.
    counts_.assign(static_cast<size_t>(count + lanes), std::numeric_limits<int32_t>::max());
    std::fill_n(counts_.begin(), count, 0);
    required_ = min_count_;
    remaining_ = std::numeric_limits<int64_t>::max();
    done_ = false;
  }

  // Nodes are visited before the sources of leaves.
  void node(int64_t, int64_t first, int64_t end, int64_t) {
    required_ -= std::min(end - first, required_);
    done_ |= required_ == 0;
  }
  void number(int64_t i, int32_t number, int64_t) { counts_[static_cast<size_t>(i)] += number; }

  void most_left(int64_t rows) {
    remaining_ = rows;
    uint32_t any = 0;
    for (size_t block = 0; block + lanes <= counts_.size(); block += lanes)
      any |= asking(static_cast<int64_t>(block), 0);
    done_ = any == 0;
  }
  bool needs(int64_t) const { return !done_; }
  bool done() const { return done_; }
  // The queries that have too few sources, but may still get enough.
  uint32_t asking(int64_t block, int64_t) const {
    Lanes<int32_t> own;
    load(counts_.data() + block, own);
    const int64_t hopeless = std::max<int64_t>(required_ - remaining_, 0);
    return lanes_below(own, narrowed(required_)) & ~lanes_below(own, narrowed(hopeless));
  }
  bool enough(int64_t i) const { return counts_[static_cast<size_t>(i)] >= required_; }

 private:
  static Lanes<int32_t> narrowed(int64_t number) { return Lanes<int32_t>(static_cast<int32_t>(number)); }

  const int64_t min_count_;
  int64_t required_ = 0;         // number of sources that each query needs in addition to the common ones
  std::vector<int32_t> counts_;  // number of sources found so far, without the common ones
  int64_t remaining_ = 0;        // an upper limit of the number still to be found
  bool done_ = false;
};

template <int D, typename T>
void enough_within(const Parallel& parallel, const EnoughWithin<D, T>& in) {
  double box[D];
  in.box.read(box);
  const double radius = in.radius[0];
  const Staged<D, T> staged(parallel, in.sources, in.queries, in.self, box);
  parallel.blocks(staged.queries->leaves(), 32, [&](int64_t begin, int64_t end) {
    BallWalk<D, T> walk(staged, 1);
    TallyUpTo tally(in.min_count);
    for (int64_t leaf = begin; leaf < end; ++leaf) {
      walk.set_group(leaf, [&](int64_t, int64_t) { return radius; });
      tally.reset(walk.count());
      walk.walk_outwards(tally);
      for (int64_t i = 0; i < walk.count(); ++i) in.enough[walk.begin() + i] = tally.enough(i);
    }
  });
  std::fill(in.enough + in.queries.num(), in.enough + in.q(), 0);
}

}  // namespace

JZTREE_KERNEL(enough_within, EnoughWithin);

}  // namespace jztree
