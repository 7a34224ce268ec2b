// The overdense sets of each group: candidates for subhaloes.
//
// Particles of a group are added in falling density. A particle looks at the two nearest denser neighbours. Without
// denser neighbours, it begins a set. If both are in one set, it joins this set. If they are in two sets, it is a
// saddle: the set with fewer particles ends there, and the other set continues with all particles of both. If both sets
// have the same number, the set with the denser peak continues. In the end, the largest set takes all sets that no
// saddle joined with it. A set that ends is a candidate if it has enough particles; the whole group is the last
// candidate.
//
// One particle represents each set. A particle links to the set that it joined, and a set that ends to the set that
// continues. Because the smaller set always ends, a path of links has at most log2(n) steps. When a set ends, its
// particles are the ones whose path leads through it, and this never changes afterwards.
//
// Source: V. Springel, S. D. M. White, G. Tormen and G. Kauffmann (2001), MNRAS 328, 726, section 4.2.
#pragma once

#include "common/arguments.h"
#include "common/portable.h"

namespace jztree {

struct DensitySets {
  Array<const int32_t> neighbours;  // (n, k), numbers of the neighbours of each row, nearest first; others are left out
  Array<const int32_t> order;       // (n,), the rows of each group in falling density, in the places of the group
  const int32_t* group;             // (n,), of each row; rows in no group have another number
  Array<const int32_t> count;       // (groups,), number of rows
  const int32_t* offset;            // (groups,), first row
  const int32_t* start;             // (groups,), the number of the first row among the neighbours
  const int32_t* first;             // (groups,), the first candidate
  int64_t min_count;                // the smallest number of particles of a candidate
  int32_t* inner;                   // (n,), the innermost candidate with each row; -1 for none
  Array<int32_t> parent;            // (candidates,), the next larger one; -1 for whole groups, -2 for none
  int32_t* height;                  // (candidates,), how deep smaller candidates are nested inside

  explicit DensitySets(Arguments& in)
      : neighbours(in.argument<int32_t>("neighbours", {any, any})),
        order(in.argument<int32_t>("order", {neighbours.rows()})),
        group(in.argument<int32_t>("group", {neighbours.rows()})),
        count(in.argument<int32_t>("count", {any})),
        offset(in.argument<int32_t>("offset", {count.rows()})),
        start(in.argument<int32_t>("start", {count.rows()})),
        first(in.argument<int32_t>("first", {count.rows()})),
        min_count(in.attributes().integer("min_count")),
        inner(in.result<int32_t>("inner", {neighbours.rows()})),
        parent(in.result<int32_t>("parent", {any})),
        height(in.result<int32_t>("height", {parent.rows()})) {}

  int64_t rows() const { return neighbours.rows(); }
};

// The sets in all groups while particles are added.
struct SetForest {
  const int32_t *neighbours, *order, *group, *count, *offset, *start, *first;
  int64_t rows, k, groups, candidates, min_count;
  int32_t* place;    // [row], its place in the order
  int32_t* denser;   // [row][2], the two nearest of the denser neighbours, or -1
  int32_t* link;     // [row], the next row on the way to the set that holds it, or -1
  int32_t* members;  // [row], the number of particles of the set that the row represents
  int32_t* peak;     // [row], and the place of the densest
  int32_t* slot;     // [row], and the candidate, or -1
  int32_t *inner, *parent, *height;

  // memory(n): space for n numbers, until the work is done.
  template <typename Memory>
  SetForest(const DensitySets& in, const Memory& memory)
      : neighbours(in.neighbours),
        order(in.order),
        group(in.group),
        count(in.count),
        offset(in.offset),
        start(in.start),
        first(in.first),
        rows(in.rows()),
        k(in.neighbours.dims[1]),
        groups(in.count.rows()),
        candidates(in.parent.rows()),
        min_count(in.min_count),
        place(memory(rows)),
        denser(memory(2 * rows)),
        link(memory(rows)),
        members(memory(rows)),
        peak(memory(rows)),
        slot(memory(rows)),
        inner(in.inner),
        parent(in.parent),
        height(in.height) {}

  // Whether the rows of a group, and its candidates, are inside the arrays.
  JZTREE_BOTH bool is_valid(int64_t g) const {
    const int64_t begin = offset[g], end = begin + count[g], slots = first[g] + count[g] / min_count;
    return count[g] >= 0 && begin >= 0 && end <= rows && first[g] >= 0 && slots <= candidates;
  }

  JZTREE_BOTH bool is_in_group(int64_t row) const { return group[row] >= 0 && group[row] < groups; }

  JZTREE_BOTH void take_place(int64_t i) const {
    if (order[i] >= 0 && order[i] < rows) place[order[i]] = static_cast<int32_t>(i);
  }

  JZTREE_BOTH void find_denser(int64_t row) const {
    int32_t* two = denser + 2 * row;
    two[0] = two[1] = link[row] = slot[row] = -1;
    members[row] = 0;
    if (!is_in_group(row)) return;
    const int32_t g = group[row], begin = offset[g], end = begin + count[g];
    int number = 0;
    for (int64_t i = row * k; i < (row + 1) * k && number < 2; ++i) {
      const int64_t neighbour = static_cast<int64_t>(neighbours[i]) - start[g] + begin;
      if (neighbours[i] >= 0 && neighbour >= begin && neighbour < end && place[neighbour] < place[row])
        two[number++] = static_cast<int32_t>(neighbour);
    }
  }

  JZTREE_BOTH int32_t set_of(int32_t row) const {
    while (link[row] >= 0) row = link[row];
    return row;
  }

  // End a set, and let a larger one continue.
  JZTREE_BOTH void end(int32_t set, int32_t larger, int32_t& next) const {
    if (members[set] >= min_count) {
      slot[set] = next;
      parent[next++] = larger;  // for now, a row
    }
    link[set] = larger;
    members[larger] += members[set];
    peak[larger] = peak[set] < peak[larger] ? peak[set] : peak[larger];
  }

  JZTREE_BOTH bool is_smaller(int32_t set, int32_t second) const {
    return members[set] != members[second] ? members[set] < members[second] : peak[set] > peak[second];
  }

  // Add all particles of a group, and make its candidates. The whole group is the first. A set that contains another
  // has a larger number, because it ends later.
  JZTREE_BOTH void join(int64_t g) const {
    if (!is_valid(g) || count[g] < min_count) return;
    const int64_t begin = offset[g], last = begin + count[g];
    int32_t next = first[g] + 1, largest = -1;
    for (int64_t i = begin; i < last; ++i) {
      const int32_t row = order[i];
      if (row < begin || row >= last) return;
      if (denser[2 * row] < 0) {
        members[row] = 1;
        peak[row] = static_cast<int32_t>(i);
        continue;
      }
      int32_t set = set_of(denser[2 * row]), second = denser[2 * row + 1] < 0 ? set : set_of(denser[2 * row + 1]);
      if (set != second) {
        const int32_t small = is_smaller(set, second) ? set : second;
        set = small == set ? second : set;
        end(small, set, next);
      }
      link[row] = set;
      ++members[set];
    }
    for (int64_t i = begin; i < last; ++i)
      if (link[order[i]] < 0 && (largest < 0 || is_smaller(largest, order[i]))) largest = order[i];
    for (int64_t i = begin; i < last; ++i)
      if (link[order[i]] < 0 && order[i] != largest) end(order[i], largest, next);
    slot[largest] = first[g];
    parent[first[g]] = -1;
    height[first[g]] = 0;
    for (int32_t candidate = first[g] + 1; candidate < next; ++candidate) height[candidate] = 0;
    for (int32_t candidate = first[g] + 1; candidate < next; ++candidate) {
      const int32_t outer = candidate_of(parent[candidate]);
      parent[candidate] = outer;
      if (height[outer] <= height[candidate]) height[outer] = height[candidate] + 1;
    }
  }

  JZTREE_BOTH int32_t candidate_of(int32_t row) const {
    while (slot[row] < 0 && link[row] >= 0) row = link[row];
    return slot[row];
  }

  JZTREE_BOTH void write(int64_t row) const {
    inner[row] = is_in_group(row) ? candidate_of(static_cast<int32_t>(row)) : -1;
  }
};

}  // namespace jztree
