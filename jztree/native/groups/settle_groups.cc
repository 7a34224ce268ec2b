#include "settle_groups.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/cpu/context.h"

namespace jztree {
namespace {

// The groups of this rank with parts on other ranks. They are few, so each is found by binary search.
class SharedGroups {
 public:
  void add(int32_t root_row) { groups_.push_back({root_row, 0}); }
  void all_are_added() {
    std::sort(groups_.begin(), groups_.end(), [](const Group& a, const Group& b) { return a.root_row < b.root_row; });
    auto equal_roots = [](const Group& a, const Group& b) { return a.root_row == b.root_row; };
    groups_.erase(std::unique(groups_.begin(), groups_.end(), equal_roots), groups_.end());
  }

  // For a group that was added: its number of particles on other ranks.
  uint64_t& operator[](int32_t root_row) {
    return std::lower_bound(groups_.begin(), groups_.end(), root_row,
                            [](const Group& group, int32_t row) { return group.root_row < row; })
        ->number;
  }

  // Set the place of each group in a window of this rank's rows. places[row] is the place of the particles on this
  // rank, which come first. After the call, the number of a shared group is the place of its next part.
  void settle(int64_t begin, int64_t end, const int32_t* count, const int32_t* root_rank, int64_t me,
              uint64_t npart_min, uint32_t* places, Tally& tally) {
    auto next = groups_.begin();
    for (int64_t row = begin; row < end; ++row) {
      if (root_rank[row] != me) continue;
      // A branch on whether a row is a root would be unpredictable. So other rows also get a place, which has no
      // meaning.
      const uint64_t local_particles = static_cast<uint64_t>(count[row]);
      uint64_t particles = local_particles;
      const bool shared = next != groups_.end() && next->root_row == row;
      if (shared) particles += next->number;
      const bool listed = particles >= npart_min;
      write_wide(places + 2 * row, listed ? tally.listed : not_listed);
      if (shared) next++->number = listed ? tally.listed + local_particles : not_listed;
      tally.listed += listed ? particles : 0;
      tally.largest = std::max(tally.largest, particles);
    }
  }

 private:
  struct Group {
    int64_t root_row;
    uint64_t number;
  };

  std::vector<Group> groups_;
};

void settle_groups(const Parallel&, const SettleGroups& in) {
  int64_t w = *in.window, entries = in.ranks() * in.chunk();
  Windows cut{in.rows(), *in.windows};
  if (w < 0 || w >= cut.count)
    throw Refusal("the window is invalid; it must be from 0 to the number of windows minus 1.");
  const int64_t begin = cut.begin(w), end = cut.begin(w + 1);
  SharedGroups groups;
  const int32_t* part = in.reports;
  for (int64_t i = 0; i < entries; ++i) {
    const int32_t row = part[2 * i];
    if (row < 0) continue;
    if (row < begin || row >= end || in.count[row] == 0 || in.root_rank[row] != *in.rank)
      throw Refusal("a rank received a part of a group that it does not own.");
    groups.add(row);
  }
  groups.all_are_added();
  for (int64_t i = 0; i < entries; ++i)
    if (part[2 * i] >= 0) groups[part[2 * i]] += static_cast<uint64_t>(part[2 * i + 1]);
  Tally sums{read_wide(in.old_tally), read_wide(in.old_tally + 2)};
  groups.settle(begin, end, in.count, in.root_rank, *in.rank, static_cast<uint64_t>(in.npart_min), in.places, sums);
  for (int64_t i = 0; i < entries; ++i) {
    uint64_t place = 0;
    if (part[2 * i] >= 0) {
      uint64_t& next = groups[part[2 * i]];
      place = next;
      if (next != not_listed) next += static_cast<uint64_t>(part[2 * i + 1]);
    }
    write_wide(in.answers + 2 * i, place);
  }
  write_wide(in.tally, sums.listed);
  write_wide(in.tally + 2, sums.largest);
}

}  // namespace

JZTREE_PLAIN_KERNEL(settle_groups, SettleGroups);

}  // namespace jztree
