// Counting rows for the splitters of a distributed sort.
//
// A splitter is where in the z-order the first row of a rank is: its Morton key, and the bits of its coordinates where
// others share that (see OrderWords). It is found byte by byte from the top: every rank counts, in its own z-ordered
// rows, how many lie before each of the 256 ways to go on from the bytes known so far; the sums over the ranks say
// which one is right.
#pragma once

#include "common/key_arguments.h"

namespace jztree {

constexpr int byte_values = 256;

// The words of a splitter (see OrderWords), which has two halves of each, the higher one first.
template <int D>
struct Splitter {
  static constexpr int halves = 2 * OrderWords<D>::count;
  static constexpr int bytes = 8 * OrderWords<D>::count;
  uint64_t words[OrderWords<D>::count];

  JZTREE_BOTH explicit Splitter(const uint32_t* from) {
    for (int i = 0; i < OrderWords<D>::count; ++i) words[i] = uint64_t{from[2 * i]} << 32 | from[2 * i + 1];
  }
  // With byte `place` (0 is the highest), which is 0, set to `value`.
  JZTREE_BOTH Splitter with_byte(int place, uint64_t value) const {
    Splitter other(*this);
    other.words[place / 8] |= value << (56 - 8 * (place % 8));
    return other;
  }
};

template <int D, typename T>
struct SplitterSearch {
  static constexpr int most_dims = max_dims;

  Array<const T> pos;  // (n, D)
  Count num;
  KeyDomain<D, T> keys;
  Array<const uint32_t> splitters;  // (s, Splitter<D>::halves)

  explicit SplitterSearch(Arguments& in)
      : pos(in.argument<T>("pos", {any, D})),
        num(in.count("num", pos.rows())),
        keys(in),
        splitters(in.argument<uint32_t>("splitters", {any, Splitter<D>::halves})) {}

  int64_t number() const { return splitters.rows(); }
};

// counts[s, b]: rows before splitter s with byte `place` set to b. Its bytes from there on are 0.
template <int D, typename T>
struct KeyCounts : SplitterSearch<D, T> {
  const int32_t* place;
  int32_t* counts;  // (s, 256)

  explicit KeyCounts(Arguments& in)
      : SplitterSearch<D, T>(in),
        place(in.number("place")),
        counts(in.result<int32_t>("counts", {this->number(), byte_values})) {}
};

// below[s]: rows before splitter s; equal[s]: rows at it.
template <int D, typename T>
struct KeyPositions : SplitterSearch<D, T> {
  int32_t *below, *equal;

  explicit KeyPositions(Arguments& in)
      : SplitterSearch<D, T>(in),
        below(in.result<int32_t>("below", {this->number()})),
        equal(in.result<int32_t>("equal", {this->number()})) {}
};

}  // namespace jztree
