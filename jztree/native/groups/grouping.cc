// Particles of all ranks into group order, as grouping.h tells.

#include "grouping.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "common/cpu/handler.h"

namespace jztree {
namespace {

ffi::Error misfit(const char* what) {
  return invalid(std::string(what) + " was called with arrays that do not fit together.");
}

template <typename Buffer>
int64_t size_of(const Buffer& buffer) {
  return static_cast<int64_t>(buffer.element_count());
}

// Runs of rows of one group that another rank owns.
struct Run {
  uint64_t key;
  int32_t first;
  int32_t index;

  bool operator<(const Run& other) const { return key != other.key ? key < other.key : first < other.first; }
};

// The first row whose group cannot be, or -1.
int64_t first_bad_row(const Roots& roots, int64_t me, int64_t num, int64_t n) {
  for (int64_t row = 0; row < num; ++row)
    if (roots.bad(row, me, n)) return row;
  return -1;
}

// label[row] = the first row here of the group of row, count[first row] = rows here. Returns the parts that other ranks
// own, by their first rows, in the order of their roots.
std::vector<int32_t> find_parts(const Roots& roots, int64_t me, int64_t num, int32_t* label, int32_t* count) {
  std::vector<Run> runs;
  for (int64_t row = 0; row < num; ++row) {
    if (roots.rank[row] == me) {
      label[row] = roots.row[row];
      ++count[label[row]];
      continue;
    }
    if (runs.empty() || runs.back().key != roots.key(row))
      runs.push_back({roots.key(row), static_cast<int32_t>(row), static_cast<int32_t>(runs.size())});
    label[row] = runs.back().index;
  }
  std::vector<int32_t> first(runs.size()), parts;
  std::sort(runs.begin(), runs.end());
  for (size_t i = 0; i < runs.size(); ++i) {
    if (i == 0 || runs[i].key != runs[i - 1].key) parts.push_back(runs[i].first);
    first[static_cast<size_t>(runs[i].index)] = parts.back();
  }
  for (int64_t row = 0; row < num; ++row) {
    if (roots.rank[row] == me) continue;
    label[row] = first[static_cast<size_t>(label[row])];
    ++count[label[row]];
  }
  return parts;
}

// Whether no rank has more than `chunk` of the parts in any window.
bool windows_fit(const Windows& windows, const Roots& roots, const std::vector<int32_t>& parts, int64_t chunk) {
  int64_t rank = -1, window = -1, here = 0;
  for (int32_t part : parts) {
    bool same = roots.rank[part] == rank && windows.of(roots.row[part]) == window;
    rank = roots.rank[part], window = windows.of(roots.row[part]);
    here = same ? here + 1 : 1;
    if (here > chunk) return false;
  }
  return true;
}

ffi::Error group_parts(ffi::Buffer<ffi::S32> rank, ffi::Buffer<ffi::S32> root_rank, ffi::Buffer<ffi::S32> root_row,
                       ffi::Buffer<ffi::S32> num, ffi::Result<ffi::Buffer<ffi::S32>> label,
                       ffi::Result<ffi::Buffer<ffi::S32>> count, ffi::Result<ffi::Buffer<ffi::S32>> parts,
                       ffi::Result<ffi::Buffer<ffi::S32>> num_parts, ffi::Result<ffi::Buffer<ffi::S32>> windows,
                       ffi::Result<ffi::Buffer<ffi::S32>> bad_row, int64_t chunk) {
  return guarded([&] {
    int64_t n = size_of(root_rank), rows = read_count(num, n), me = rank.typed_data()[0];
    if (size_of(root_row) != n || size_of(*label) != n || size_of(*count) != n || size_of(*parts) != n || chunk < 1)
      return misfit("group_parts");
    Roots roots{root_rank.typed_data(), root_row.typed_data()};
    int64_t bad = first_bad_row(roots, me, rows, n);
    bad_row->typed_data()[0] = static_cast<int32_t>(bad);
    if (bad >= 0) rows = 0;
    std::fill_n(count->typed_data(), n, 0);
    std::vector<int32_t> found = find_parts(roots, me, rows, label->typed_data(), count->typed_data());
    std::iota(label->typed_data() + rows, label->typed_data() + n, static_cast<int32_t>(rows));
    std::fill(std::copy(found.begin(), found.end(), parts->typed_data()), parts->typed_data() + n, -1);
    num_parts->typed_data()[0] = static_cast<int32_t>(found.size());
    // Windows of `chunk` rows always fit, because a rank has one part of a group.
    Windows cut{n, 1};
    while (!windows_fit(cut, roots, found, chunk)) cut.count *= 2;
    windows->typed_data()[0] = static_cast<int32_t>(cut.count);
    return ffi::Error::Success();
  });
}

// buffer[r, j] = (row of the root, particles) of part starts[r] + j, one of the counts[r] whose root is on rank r in
// this window; (-1, 0) where there is none.
ffi::Error pack_parts(ffi::Buffer<ffi::S32> root_rank, ffi::Buffer<ffi::S32> root_row, ffi::Buffer<ffi::S32> count,
                      ffi::Buffer<ffi::S32> parts, ffi::Buffer<ffi::S32> num_parts, ffi::Buffer<ffi::S32> window,
                      ffi::Buffer<ffi::S32> windows, ffi::Result<ffi::Buffer<ffi::S32>> buffer,
                      ffi::Result<ffi::Buffer<ffi::S32>> starts, ffi::Result<ffi::Buffer<ffi::S32>> counts) {
  return guarded([&] {
    auto shape = buffer->dimensions();
    int64_t n = size_of(root_rank), w = window.typed_data()[0];
    Windows cut{n, windows.typed_data()[0]};
    if (size_of(root_row) != n || size_of(count) != n || size_of(parts) != n || shape.size() != 3 || shape[2] != 2 ||
        size_of(*starts) != shape[0] || size_of(*counts) != shape[0] || w < 0 || w >= cut.count)
      return misfit("pack_parts");
    Roots roots{root_rank.typed_data(), root_row.typed_data()};
    const int32_t *begin = parts.typed_data(), *end = begin + read_count(num_parts, n);
    for (int64_t r = 0; r < shape[0]; ++r) {
      auto first_from = [&](int64_t row) {
        return std::lower_bound(begin, end, Roots::key_of(r, row),
                                [&](int32_t part, uint64_t key) { return roots.key(part) < key; });
      };
      const int32_t *from = first_from(cut.begin(w)), *to = first_from(cut.begin(w + 1));
      if (to - from > shape[1]) return misfit("pack_parts");
      starts->typed_data()[r] = static_cast<int32_t>(from - begin);
      counts->typed_data()[r] = static_cast<int32_t>(to - from);
      int32_t* out = buffer->typed_data() + 2 * r * shape[1];
      for (int64_t j = 0; j < shape[1]; ++j) {
        out[2 * j] = j < to - from ? roots.row[from[j]] : -1;
        out[2 * j + 1] = j < to - from ? count.typed_data()[from[j]] : 0;
      }
    }
    return ffi::Error::Success();
  });
}

// What an owner knows of its groups so far: the particles of those that are listed, and of the largest.
struct Tally {
  uint64_t listed, largest;
};

// The groups of one window of this rank's rows. told: (row of the root, particles) from all ranks, in their order.
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

ffi::Error settle_groups(ffi::Buffer<ffi::S32> rank, ffi::Buffer<ffi::S32> root_rank, ffi::Buffer<ffi::S32> count,
                         ffi::Buffer<ffi::S32> told, ffi::Buffer<ffi::S32> window, ffi::Buffer<ffi::S32> windows,
                         ffi::Buffer<ffi::U32> old_places, ffi::Buffer<ffi::U32> old_tally,
                         ffi::Result<ffi::Buffer<ffi::U32>> answers, ffi::Result<ffi::Buffer<ffi::U32>> places,
                         ffi::Result<ffi::Buffer<ffi::U32>> tally, int64_t npart_min) {
  return guarded([&] {
    int64_t n = size_of(root_rank), w = window.typed_data()[0], entries = size_of(told) / 2;
    Windows cut{n, windows.typed_data()[0]};
    if (size_of(count) != n || size_of(*answers) != 2 * entries || size_of(old_places) != 2 * n ||
        size_of(*places) != 2 * n || size_of(old_tally) != 4 || size_of(*tally) != 4 || w < 0 || w >= cut.count)
      return misfit("settle_groups");
    if (places->typed_data() != old_places.typed_data())
      std::copy_n(old_places.typed_data(), 2 * n, places->typed_data());
    WindowOfGroups groups(cut.begin(w), cut.begin(w + 1));
    const int32_t* part = told.typed_data();
    for (int64_t i = 0; i < entries; ++i) {
      if (part[2 * i] < 0) continue;
      if (!groups.holds(part[2 * i]) || count.typed_data()[part[2 * i]] == 0) return misfit("settle_groups");
      groups[part[2 * i]] += static_cast<uint64_t>(part[2 * i + 1]);
    }
    Tally sums{read_wide(old_tally.typed_data()), read_wide(old_tally.typed_data() + 2)};
    groups.settle(count.typed_data(), root_rank.typed_data(), rank.typed_data()[0], static_cast<uint64_t>(npart_min),
                  places->typed_data(), sums);
    for (int64_t i = 0; i < entries; ++i) {
      uint64_t place = 0;
      if (part[2 * i] >= 0) {
        uint64_t& next = groups[part[2 * i]];
        place = next;
        if (next != not_listed) next += static_cast<uint64_t>(part[2 * i + 1]);
      }
      write_wide(answers->typed_data() + 2 * i, place);
    }
    write_wide(tally->typed_data(), sums.listed);
    write_wide(tally->typed_data() + 2, sums.largest);
    return ffi::Error::Success();
  });
}

// The starts of a GlobalOrder.
std::vector<uint64_t> starts_of(const uint32_t* tallies, int64_t ranks) {
  std::vector<uint64_t> starts{0};
  for (int64_t r = 0; r < ranks; ++r)
    starts.push_back(starts.back() + GlobalOrder::particles_of(tallies + GlobalOrder::tally_words * r));
  return starts;
}

// to_rank[row], target[row]: where a particle goes; the target is ~row there if it is the first of a listed group.
ffi::Error group_targets(ffi::Buffer<ffi::S32> rank, ffi::Buffer<ffi::S32> root_rank, ffi::Buffer<ffi::S32> root_row,
                         ffi::Buffer<ffi::S32> num, ffi::Buffer<ffi::S32> label, ffi::Buffer<ffi::U32> places,
                         ffi::Buffer<ffi::U32> tallies, ffi::Result<ffi::Buffer<ffi::S32>> to_rank,
                         ffi::Result<ffi::Buffer<ffi::S32>> target) {
  return guarded([&] {
    int64_t n = size_of(root_rank), rows = read_count(num, n), ranks = size_of(tallies) / GlobalOrder::tally_words;
    int64_t me = rank.typed_data()[0];
    if (size_of(root_row) != n || size_of(label) != n || size_of(places) != 2 * n || size_of(*to_rank) != n ||
        size_of(*target) != n || me < 0 || me >= ranks)
      return misfit("group_targets");
    std::vector<uint64_t> starts = starts_of(tallies.typed_data(), ranks);
    GlobalOrder order{tallies.typed_data(), starts.data(), ranks};
    Shares shares(order.total(), static_cast<uint64_t>(ranks));
    std::vector<int32_t> before(static_cast<size_t>(n), 0);  // rows of a part that have been placed
    uint64_t next_unlisted = order.unlisted(me);
    for (int64_t row = 0; row < rows; ++row) {
      int64_t first = label.typed_data()[row], owner = root_rank.typed_data()[row];
      if (first < 0 || first > row || owner < 0 || owner >= ranks) return misfit("group_targets");
      uint64_t place = read_wide(places.typed_data() + 2 * first), end;
      bool root = owner == me && root_row.typed_data()[row] == row && place != not_listed;
      if (place == not_listed) {
        place = next_unlisted++;
        end = order.end(me);
      } else {
        place += order.groups(owner);
        place += static_cast<uint64_t>(before[static_cast<size_t>(first)]++);
        end = order.unlisted(owner);
      }
      if (place >= end) return misfit("group_targets");
      uint64_t to = shares.rank_of(place);
      int32_t there = static_cast<int32_t>(place - shares.start(to));
      to_rank->typed_data()[row] = static_cast<int32_t>(to);
      target->typed_data()[row] = root ? ~there : there;
    }
    std::fill(to_rank->typed_data() + rows, to_rank->typed_data() + n, -1);
    std::fill(target->typed_data() + rows, target->typed_data() + n, 0);
    return ffi::Error::Success();
  });
}

// place[i] = where row i, as it arrived, belongs, which orders all n rows; the groups that begin here; and the leading
// rows that continue the last group of the ranks before.
ffi::Error group_segments(ffi::Buffer<ffi::S32> rank, ffi::Buffer<ffi::S32> target, ffi::Buffer<ffi::S32> num,
                          ffi::Buffer<ffi::U32> tallies, ffi::Result<ffi::Buffer<ffi::S32>> place,
                          ffi::Result<ffi::Buffer<ffi::S32>> head, ffi::Result<ffi::Buffer<ffi::S32>> ngroups,
                          ffi::Result<ffi::Buffer<ffi::S32>> count, ffi::Result<ffi::Buffer<ffi::S32>> offset) {
  return guarded([&] {
    int64_t n = size_of(target), rows = read_count(num, n), room = size_of(*count);
    int64_t me = rank.typed_data()[0], ranks = size_of(tallies) / GlobalOrder::tally_words;
    if (size_of(*place) != n || size_of(*offset) != room || me < 0 || me >= ranks) return misfit("group_segments");
    std::vector<uint64_t> starts = starts_of(tallies.typed_data(), ranks);
    GlobalOrder order{tallies.typed_data(), starts.data(), ranks};
    uint64_t start = Shares(order.total(), static_cast<uint64_t>(ranks)).start(static_cast<uint64_t>(me));
    std::vector<char> begins(static_cast<size_t>(rows), 0);
    int64_t firsts = 0, groups = 0;
    for (int64_t row = 0; row < rows; ++row) {
      int32_t to = target.typed_data()[row];
      bool first = to < 0;
      place->typed_data()[row] = first ? ~to : to;
      if (place->typed_data()[row] >= rows) return misfit("group_segments");
      if (first) begins[static_cast<size_t>(~to)] = 1;
      firsts += first;
    }
    std::iota(place->typed_data() + rows, place->typed_data() + n, static_cast<int32_t>(rows));
    std::fill_n(count->typed_data(), room, 0);
    std::fill_n(offset->typed_data(), room, 0);
    head->typed_data()[0] = 0;
    auto row_of = [&](uint64_t at) {
      return at > start ? static_cast<int64_t>(std::min(at - start, static_cast<uint64_t>(rows))) : 0;
    };
    for (int64_t r = 0; r < ranks; ++r) {
      // Groups of one rank follow each other, so the rows before the first that begins here continue one.
      int32_t* size = order.groups(r) < start ? head->typed_data() : nullptr;
      for (int64_t row = row_of(order.groups(r)), end = row_of(order.unlisted(r)); row < end; ++row) {
        if (begins[static_cast<size_t>(row)]) {
          if (groups == room) return misfit("group_segments");
          size = count->typed_data() + groups;
          offset->typed_data()[groups++] = static_cast<int32_t>(row);
        }
        if (!size) return misfit("group_segments");
        ++*size;
      }
    }
    if (groups != firsts) return misfit("group_segments");
    ngroups->typed_data()[0] = static_cast<int32_t>(groups);
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_group_parts, group_parts, "chunk");
JZTREE_HANDLER(jztree_pack_parts, pack_parts);
JZTREE_HANDLER(jztree_settle_groups, settle_groups, "npart_min");
JZTREE_HANDLER(jztree_group_targets, group_targets);
JZTREE_HANDLER(jztree_group_segments, group_segments);

}  // namespace jztree
