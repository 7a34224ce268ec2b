#include "group_targets.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "common/cpu/context.h"
#include "common/cpu/memory.h"

namespace jztree {
namespace {

// The starts of a GlobalOrder.
std::vector<uint64_t> starts_of(const Array<const uint32_t>& tallies) {
  std::vector<uint64_t> starts{0};
  for (int64_t r = 0; r < tallies.rows(); ++r)
    starts.push_back(starts.back() + GlobalOrder::particles_of(tallies + GlobalOrder::tally_words * r));
  return starts;
}

// The rank, if it is valid.
int64_t checked_rank(const int32_t* rank, int64_t ranks) {
  if (*rank < 0 || *rank >= ranks)
    throw Refusal("the rank is invalid; it must be from 0 to the number of ranks minus 1.");
  return *rank;
}

// Finds the rank whose share contains a place. Places are mostly consecutive, so most need no division.
class ShareOf {
 public:
  explicit ShareOf(const Shares& shares) : shares_(shares) {}

  uint64_t rank(uint64_t place) {
    if (place < start_ || place >= end_) {
      rank_ = shares_.rank_of(place);
      start_ = shares_.start(rank_);
      end_ = shares_.start(rank_ + 1);
    }
    return rank_;
  }
  // For the last requested rank.
  uint64_t start() const { return start_; }

 private:
  const Shares shares_;
  uint64_t rank_ = 0, start_ = 0, end_ = 0;
};

void group_targets(const Parallel&, const GroupTargets& in) {
  int64_t n = in.rows(), num = in.num(), ranks = in.ranks(), me = checked_rank(in.rank, ranks);
  auto misfit = [](int64_t row) {
    throw Refusal("row " + std::to_string(row) + " is in no valid group, so it cannot be put into group order.");
  };
  std::vector<uint64_t> starts = starts_of(in.tallies);
  GlobalOrder order{in.tallies, starts.data(), ranks};
  ShareOf share(Shares(order.total(), static_cast<uint64_t>(ranks)));
  Scratch<int32_t> before(n);  // number of placed rows of a part of a listed group, at its first row
  uint64_t next_unlisted = order.unlisted(me);
  for (int64_t row = 0; row < num; ++row) {
    int64_t first = in.label[row], owner = in.root_rank[row];
    if (first < 0 || first > row || in.label[first] != first || owner < 0 || owner >= ranks) misfit(row);
    uint64_t place = read_wide(in.places + 2 * first), end;
    bool root = false;
    if (place == not_listed) {
      place = next_unlisted++;
      end = order.end(me);
    } else {
      if (first == row) before[first] = 0;
      place += order.groups(owner) + static_cast<uint64_t>(before[first]++);
      end = order.unlisted(owner);
      root = owner == me && in.root_row[row] == row;
    }
    if (place >= end) misfit(row);
    in.to_rank[row] = static_cast<int32_t>(share.rank(place));
    int32_t offset = static_cast<int32_t>(place - share.start());
    in.target[row] = root ? ~offset : offset;
  }
  std::fill(in.to_rank + num, in.to_rank + n, -1);
  std::fill(in.target + num, in.target + n, 0);
}

// Mark the rows in which groups begin, and return their number.
int64_t place_arrivals(const GroupSegments& in, int64_t num, std::vector<char>& begins) {
  int64_t firsts = 0;
  for (int64_t row = 0; row < num; ++row) {
    int32_t to = in.target[row];
    bool first = to < 0;
    in.place[row] = first ? ~to : to;
    if (in.place[row] >= num) throw Refusal("invalid row index in target.");
    if (first) begins[static_cast<size_t>(~to)] = 1;
    firsts += first;
  }
  std::iota(in.place + num, in.place + in.rows(), static_cast<int32_t>(num));
  return firsts;
}

void group_segments(const Parallel&, const GroupSegments& in) {
  int64_t num = in.num(), ranks = in.ranks(), me = checked_rank(in.rank, ranks), groups = 0;
  std::vector<uint64_t> starts = starts_of(in.tallies);
  GlobalOrder order{in.tallies, starts.data(), ranks};
  uint64_t start = Shares(order.total(), static_cast<uint64_t>(ranks)).start(static_cast<uint64_t>(me));
  std::vector<char> begins(static_cast<size_t>(num), 0);
  int64_t firsts = place_arrivals(in, num, begins);
  std::fill_n(in.count.data, in.room(), 0);
  std::fill_n(in.offset, in.room(), 0);
  *in.head = 0;
  auto row_of = [&](uint64_t position) {
    return position > start ? static_cast<int64_t>(std::min(position - start, static_cast<uint64_t>(num))) : 0;
  };
  const char* misfit = "the received particles do not match the groups in tallies.";
  for (int64_t r = 0; r < ranks; ++r) {
    // The groups of one rank are contiguous, so the rows before the first group that begins here continue another.
    int32_t* size = order.groups(r) < start ? in.head : nullptr;
    for (int64_t row = row_of(order.groups(r)), end = row_of(order.unlisted(r)); row < end; ++row) {
      if (begins[static_cast<size_t>(row)]) {
        if (groups == in.room()) throw Refusal(misfit);
        size = in.count + groups;
        in.offset[groups++] = static_cast<int32_t>(row);
      }
      if (!size) throw Refusal(misfit);
      ++*size;
    }
  }
  if (groups != firsts) throw Refusal(misfit);
  *in.ngroups = static_cast<int32_t>(groups);
}

}  // namespace

JZTREE_PLAIN_KERNEL(group_targets, GroupTargets);
JZTREE_PLAIN_KERNEL(group_segments, GroupSegments);

}  // namespace jztree
