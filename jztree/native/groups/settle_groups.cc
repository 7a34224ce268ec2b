#include "settle_groups.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/cpu/context.h"

namespace jztree {
namespace {

// The groups of one window of this rank's rows.
class WindowOfGroups {
 public:
  WindowOfGroups(int64_t begin, int64_t end) : begin_(begin), size_(static_cast<size_t>(end - begin), 0) {}

  // The particles of the group whose root is in this row.
  uint64_t& operator[](int64_t row) { return size_[static_cast<size_t>(row - begin_)]; }
  bool holds(int64_t row) const { return row >= begin_ && row - begin_ < static_cast<int64_t>(size_.size()); }

  // Gives each group of this rank its place; places[row] is that of the particles here, which come first. From here on
  // a group's entry is the place of its next part.
  void settle(const int32_t* count, const int32_t* root_rank, int64_t me, uint64_t npart_min, uint32_t* places,
              Tally& tally) {
    for (size_t i = 0; i < size_.size(); ++i) {
      int64_t row = begin_ + static_cast<int64_t>(i);
      if (count[row] == 0 || root_rank[row] != me) continue;
      uint64_t particles = size_[i] + static_cast<uint64_t>(count[row]);
      bool listed = particles >= npart_min;
      write_wide(places + 2 * row, listed ? tally.listed : not_listed);
      size_[i] = listed ? tally.listed + static_cast<uint64_t>(count[row]) : not_listed;
      tally.listed += listed ? particles : 0;
      tally.largest = std::max(tally.largest, particles);
    }
  }

 private:
  int64_t begin_;
  std::vector<uint64_t> size_;
};

void settle_groups(const Parallel&, const SettleGroups& in) {
  int64_t w = *in.window, entries = in.ranks() * in.chunk();
  Windows cut{in.rows(), *in.windows};
  if (w < 0 || w >= cut.count) throw Refusal("groups were to be settled in a window that there is not.");
  WindowOfGroups groups(cut.begin(w), cut.begin(w + 1));
  const int32_t* part = in.told;
  for (int64_t i = 0; i < entries; ++i) {
    if (part[2 * i] < 0) continue;
    if (!groups.holds(part[2 * i]) || in.count[part[2 * i]] == 0)
      throw Refusal("a rank was told of a part of a group that it does not own.");
    groups[part[2 * i]] += static_cast<uint64_t>(part[2 * i + 1]);
  }
  Tally sums{read_wide(in.old_tally), read_wide(in.old_tally + 2)};
  groups.settle(in.count, in.root_rank, *in.rank, static_cast<uint64_t>(in.npart_min), in.places, sums);
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
