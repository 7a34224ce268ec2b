#include "group_parts.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "common/cpu/context.h"

namespace jztree {
namespace {

// A run of rows in one group that another rank owns.
struct Run {
  uint64_t key;
  int32_t first;
  int32_t index;

  bool operator<(const Run& other) const { return key != other.key ? key < other.key : first < other.first; }
};

// label[row] = the first row here of the group of row, count[first row] = number of rows here. Returns the parts that
// other ranks own, as their first rows, in the order of their roots. Stops at the first row with an invalid root,
// `bad_row`.
std::vector<int32_t> find_parts(const GroupParts& in, int64_t num, int64_t& bad_row) {
  const Roots roots = in.roots();
  const int64_t me = *in.rank, n = in.rows();
  int32_t *label = in.label, *count = in.count;
  std::vector<Run> runs;
  std::vector<int32_t> elsewhere;  // rows of groups that other ranks own; at first, their labels are the negative
                                   // labels of runs
  for (int64_t row = 0; row < num; ++row) {
    count[row] = 0;  // set before any row of a part that begins here
    const bool is_local = roots.rank[row] == me;
    const int32_t root = roots.row[row];
    if (is_local) label[row] = root;
    // The labels set so far show which rows are roots of this rank.
    if (is_local ? root < 0 || root > row || label[root] != root : roots.bad(row, me, n)) {
      bad_row = row;
      return {};
    }
    if (is_local) {
      ++count[root];
      continue;
    }
    if (runs.empty() || runs.back().key != roots.key(row))
      runs.push_back({roots.key(row), static_cast<int32_t>(row), static_cast<int32_t>(runs.size())});
    label[row] = ~runs.back().index;
    elsewhere.push_back(static_cast<int32_t>(row));
  }
  std::vector<int32_t> first(runs.size()), parts;
  std::sort(runs.begin(), runs.end());
  for (size_t i = 0; i < runs.size(); ++i) {
    if (i == 0 || runs[i].key != runs[i - 1].key) parts.push_back(runs[i].first);
    first[static_cast<size_t>(runs[i].index)] = parts.back();
  }
  for (int32_t row : elsewhere) {
    label[row] = first[static_cast<size_t>(~label[row])];
    ++count[label[row]];
  }
  return parts;
}

// Whether every rank has at most `chunk` of the parts in each window.
bool windows_fit(const Windows& windows, const Roots& roots, const std::vector<int32_t>& parts, int64_t chunk) {
  int64_t rank = -1, window = -1, here = 0;
  for (int32_t part : parts) {
    bool continues = roots.rank[part] == rank && windows.of(roots.row[part]) == window;
    rank = roots.rank[part], window = windows.of(roots.row[part]);
    here = continues ? here + 1 : 1;
    if (here > chunk) return false;
  }
  return true;
}

void group_parts(const Parallel&, const GroupParts& in) {
  int64_t n = in.rows(), num = in.num(), bad = -1;
  std::vector<int32_t> found = find_parts(in, num, bad);
  *in.bad_row = static_cast<int32_t>(bad);
  if (bad >= 0) num = 0;
  std::fill(in.count + num, in.count + n, 0);
  std::iota(in.label + num, in.label + n, static_cast<int32_t>(num));
  std::fill(std::copy(found.begin(), found.end(), in.parts), in.parts + n, -1);
  *in.num_parts = static_cast<int32_t>(found.size());
  // Windows of `chunk` rows always fit, because a rank has only one part of a group.
  Windows cut{n, 1};
  while (!windows_fit(cut, in.roots(), found, in.chunk)) cut.count *= 2;
  *in.windows = static_cast<int32_t>(cut.count);
}

void pack_parts(const Parallel&, const PackParts& in) {
  int64_t w = *in.window, chunk = in.chunk();
  Windows cut{in.rows(), *in.windows};
  if (w < 0 || w >= cut.count)
    throw Refusal("the window is invalid; it must be from 0 to the number of windows minus 1.");
  Roots roots = in.roots();
  const int32_t *begin = in.parts, *end = begin + in.num_parts();
  for (int64_t r = 0; r < in.ranks(); ++r) {
    auto first_from = [&](int64_t row) {
      return std::lower_bound(begin, end, Roots::key_of(r, row),
                              [&](int32_t part, uint64_t key) { return roots.key(part) < key; });
    };
    const int32_t *from = first_from(cut.begin(w)), *to = first_from(cut.begin(w + 1));
    if (to - from > chunk) throw Refusal("a window has more parts of groups than chunk.");
    in.starts[r] = static_cast<int32_t>(from - begin);
    in.counts[r] = static_cast<int32_t>(to - from);
    int32_t* out = in.buffer + 2 * r * chunk;
    for (int64_t j = 0; j < chunk; ++j) {
      out[2 * j] = j < to - from ? roots.row[from[j]] : -1;
      out[2 * j + 1] = j < to - from ? in.count[from[j]] : 0;
    }
  }
}

}  // namespace

JZTREE_PLAIN_KERNEL(group_parts, GroupParts);
JZTREE_PLAIN_KERNEL(pack_parts, PackParts);

}  // namespace jztree
