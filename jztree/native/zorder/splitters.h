// Finds the splitters of a distributed sort by counting rows.
//
// A splitter is the position in the z-order of a rank's first row. It consists of a Morton key, followed by the bits of
// the coordinates if other rows share the key (see OrderWords). Splitters are found from the top, a few bits per step.
// Splitters that agree in all known bits are in one cell of the z-order and form a group; the next bits divide the cell
// into parts. Every rank counts, in its own z-ordered rows, the rows in the cell up to the end of each part
// (`count_parts`). The sums over the ranks give the part of each splitter (`choose_parts`), which every rank computes
// itself.
#pragma once

#include "common/key_arguments.h"
#include "common/partition.h"

namespace jztree {

// The words of a splitter (see OrderWords), each as two halves, the higher one first.
template <int D>
struct Splitter {
  uint64_t words[OrderWords<D>::most];

  JZTREE_BOTH static constexpr int halves(const KeyShape<D>& shape) { return 2 * OrderWords<D>::count(shape); }

  JZTREE_BOTH Splitter(const KeyShape<D>& shape, const uint32_t* splitters, int64_t number) {
    const uint32_t* from = splitters + number * halves(shape);
    for (int i = 0; i < OrderWords<D>::count(shape); ++i) words[i] = uint64_t{from[2 * i]} << 32 | from[2 * i + 1];
  }
};

// The next bits: `bits` consecutive bits of one word, `shift` above its lowest bit.
struct Step {
  static constexpr int numbers = 3;
  int word, shift, bits;

  // Out-of-range values, which no caller passes, give useless bits but never access other memory.
  JZTREE_BOTH Step(const int32_t* from, int words)
      : word(within(from[0], words - 1)), shift(within(from[1], 63)), bits(within(from[2], 30)) {}

  JZTREE_BOTH int64_t parts() const { return int64_t{1} << bits; }

 private:
  JZTREE_BOTH static int within(int32_t value, int limit) { return value < 0 ? 0 : value > limit ? limit : value; }
};

// The first splitter of a group, or the number of splitters if the group does not exist. Groups count from 1 and
// ascend.
JZTREE_BOTH inline int64_t first_of_group(const int32_t* groups, int64_t number, int64_t group) {
  return partition_point(0, number, [&](int64_t s) { return groups[s] < group; });
}

// counts[(g - 1) * parts + p]: rows of group g's cell up to the end of its part p. 0 after the last group.
template <int D, typename T>
struct CountParts {
  const T* pos;  // (n, dims), not padded, because a step reads few rows
  KeyDomain<D, T> keys;
  const uint32_t* splitters;  // (s, halves); the bits from the step on are 0
  const int32_t* rows;        // (s, 2): the first row in the splitter's cell, and the number of rows in it
  const int32_t* groups;      // (s,)
  const int32_t* step;
  int32_t* counts;  // (c,)
  int64_t n, number, room;

  explicit CountParts(Arguments& in) : CountParts(in, in.argument<T>("pos", {any, in.given_width(D)})) {}

 private:
  CountParts(Arguments& in, const Array<const T>& given) : pos(given), keys(in), n(given.rows()) {
    auto places = in.argument<uint32_t>("splitters", {any, Splitter<D>::halves(keys.shape())});
    splitters = places, number = places.rows();
    rows = in.argument<int32_t>("rows", {number, 2});
    groups = in.argument<int32_t>("groups", {number});
    step = in.argument<int32_t>("step", {Step::numbers});
    auto result = in.result<int32_t>("counts", {any});
    counts = result, room = result.rows();
  }
};

// A run of rows in z-order.
struct RowRange {
  int64_t first, last;

  JZTREE_BOTH RowRange(const int32_t* first_and_count, int64_t rows) {
    first = within(first_and_count[0], rows);
    last = within(first + first_and_count[1], rows);
    if (last < first) last = first;
  }

 private:
  JZTREE_BOTH static int64_t within(int64_t row, int64_t rows) { return row < 0 ? 0 : row > rows ? rows : row; }
};

// The next bits of each splitter, and the rows then in its cell.
struct ChooseParts {
  const int32_t* sums;        // (c, 2): sums of the counts over the ranks, as high * 2^16 + low
  const int32_t* own;         // (t, c): the counts of this rank, for each type of rows
  const uint32_t* splitters;  // (s, halves)
  const int32_t* left;        // (s, 2): number of rows of the cell before the splitter, as high * 2^16 + low
  const int32_t* rows;        // (t, s, 2)
  const int32_t* groups;      // (s,)
  const int32_t* step;
  uint32_t* new_splitters;
  int32_t *new_left, *new_rows;
  int64_t room, types, number, halves;

  explicit ChooseParts(Arguments& in) {
    auto totals = in.argument<int32_t>("sums", {any, 2});
    sums = totals, room = totals.rows();
    auto counts = in.argument<int32_t>("own", {any, room});
    own = counts, types = counts.rows();
    auto places = in.argument<uint32_t>("splitters", {any, any});
    splitters = places, number = places.rows(), halves = places.dims[1];
    left = in.argument<int32_t>("left", {number, 2});
    rows = in.argument<int32_t>("rows", {types, number, 2});
    groups = in.argument<int32_t>("groups", {number});
    step = in.argument<int32_t>("step", {Step::numbers});
    new_splitters = in.result<uint32_t>("splitters", {number, halves});
    new_left = in.result<int32_t>("left", {number, 2});
    new_rows = in.result<int32_t>("rows", {types, number, 2});
  }

  // Process one splitter. If no rows are left, the splitter stays unchanged. A negative number marks the first step.
  // The splitter then marks the start of the share of rank s + 1: all ranks get the same number of rows, except that
  // the first ones get one more.
  JZTREE_BOTH void choose(int64_t s) const {
    Step next(step, static_cast<int>(halves / 2));
    int64_t to_find = int64_t{left[2 * s]} * 65536 + left[2 * s + 1];
    int64_t first = (groups[s] - 1) * next.parts(), end = first + next.parts();
    for (int64_t h = s * halves; h < (s + 1) * halves; ++h) new_splitters[h] = splitters[h];
    if (to_find == 0 || first < 0 || end > room) return keep(s);
    if (to_find < 0) to_find = share_start(up_to(end - 1), s + 1);
    const int64_t part = partition_point(first, end, [&](int64_t p) { return up_to(p) <= to_find; });
    set_bits(s, next, part - first);
    take_rows(s, first, end, part);
    // A splitter past all rows has no row to find.
    set_left(s, part == end ? 0 : part == first ? to_find : to_find - up_to(part - 1));
  }

 private:
  JZTREE_BOTH int64_t up_to(int64_t part) const { return int64_t{sums[2 * part]} * 65536 + sums[2 * part + 1]; }

  JZTREE_BOTH int64_t share_start(int64_t total, int64_t rank) const {
    int64_t ranks = number + 1, more = total % ranks;
    return total / ranks * rank + (rank < more ? rank : more);
  }

  JZTREE_BOTH void keep(int64_t s) const {
    for (int64_t t = 0; t < types; ++t)
      for (int64_t i = 2 * (t * number + s); i < 2 * (t * number + s + 1); ++i) new_rows[i] = rows[i];
    for (int64_t i = 2 * s; i < 2 * (s + 1); ++i) new_left[i] = left[i];
  }

  JZTREE_BOTH void set_left(int64_t s, int64_t value) const {
    new_left[2 * s] = static_cast<int32_t>(value >> 16);
    new_left[2 * s + 1] = static_cast<int32_t>(value & 0xffff);
  }

  // A splitter past all rows gets the last possible place.
  JZTREE_BOTH void set_bits(int64_t s, const Step& next, int64_t part) const {
    uint32_t* to = new_splitters + s * halves;
    if (part == next.parts()) {
      for (int64_t h = 0; h < halves; ++h) to[h] = ~uint32_t{0};
    } else {
      uint64_t bits = static_cast<uint64_t>(part) << next.shift;
      to[2 * next.word] |= static_cast<uint32_t>(bits >> 32);
      to[2 * next.word + 1] |= static_cast<uint32_t>(bits);
    }
  }

  // This rank's rows in the part; none past all rows.
  JZTREE_BOTH void take_rows(int64_t s, int64_t first, int64_t end, int64_t part) const {
    for (int64_t t = 0; t < types; ++t) {
      const int32_t* counts = own + t * room;
      int64_t place = 2 * (t * number + s);
      int32_t before = part > first ? counts[part - 1] : 0;
      new_rows[place] = rows[place] + before;
      new_rows[place + 1] = part < end ? counts[part] - before : 0;
    }
  }
};

// below[s]: rows before splitter s.
template <int D, typename T>
struct KeyPositions : KeyedPositions<D, T> {  // (n, dims), not padded, because a search reads few rows
  Array<const uint32_t> splitters;            // (s, halves)
  int32_t* below;                             // (s,)

  explicit KeyPositions(Arguments& in)
      : KeyedPositions<D, T>(in, in.given_width(D)),
        splitters(in.argument<uint32_t>("splitters", {any, Splitter<D>::halves(this->keys.shape())})),
        below(in.result<int32_t>("below", {splitters.rows()})) {}

  int64_t number() const { return splitters.rows(); }
};

}  // namespace jztree
