// Puts the particles of every rank into group order.
//
// Every rank holds a range of the global z-order. A group is named by its first particle, its root: a rank, which owns
// the group, and a row. No member is on a lower rank than the root. The particles of a group on one rank form a part,
// named by its first row on that rank. Each rank sends the sizes of its parts to the owners of the groups. The owner
// answers with the place of each part among all particles of the owner's listed groups. Each rank then knows the
// destination of its particles. Particle numbers over several ranks are 64-bit, and are sent as two words. The global
// order goes rank by rank, so most particles stay on their rank. All ranks know the numbers of grouped and other
// particles of each rank, and can derive the rows that are in groups.
//
// The parts are sent window by window; a window is a range of the owners' rows. A rank has at most one part of a group,
// so in a sufficiently narrow window each rank's parts fit the buffer. The owner settles all groups of a window at
// once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/arguments.h"
#include "common/portable.h"

namespace jztree {

constexpr uint64_t not_listed = ~uint64_t{0};

JZTREE_BOTH inline uint64_t read_wide(const uint32_t* words) {
  return words[0] | static_cast<uint64_t>(words[1]) << 32;
}

JZTREE_BOTH inline void write_wide(uint32_t* words, uint64_t value) {
  words[0] = static_cast<uint32_t>(value);
  words[1] = static_cast<uint32_t>(value >> 32);
}

// Window w consists of rows [begin(w), begin(w + 1)). If the number of windows doubles, each window is halved.
struct Windows {
  int64_t rows, count;

  JZTREE_BOTH int64_t of(int64_t row) const { return row * count / rows; }
  JZTREE_BOTH int64_t begin(int64_t window) const { return (window * rows + count - 1) / count; }
};

// Roots in the order of ranks and rows.
struct Roots {
  const int32_t *rank, *row;

  JZTREE_BOTH static uint64_t key_of(int64_t rank, int64_t row) {
    return static_cast<uint64_t>(rank) << 32 | static_cast<uint64_t>(row);
  }
  JZTREE_BOTH uint64_t key(int64_t i) const { return key_of(rank[i], static_cast<uint32_t>(row[i])); }

  // Whether the root of `place` is invalid: no particle comes before the root of its group, and the root is a member
  // itself. me: this rank, which has n rows.
  JZTREE_BOTH bool bad(int64_t place, int64_t me, int64_t n) const {
    int64_t owner = rank[place], root = row[place];
    if (owner < 0 || owner > me || root < 0 || root >= (owner == me ? place + 1 : n)) return true;
    return owner == me && (rank[root] != me || row[root] != root);
  }
};

// The rows of a rank, and the root of the group of each, as arguments of kernels.
struct RootedRows {
  const int32_t* rank;
  Array<const int32_t> root_rank;  // (n,)
  const int32_t* root_row;         // (n,)
  Count num;

  explicit RootedRows(Arguments& in)
      : rank(in.number("rank")),
        root_rank(in.argument<int32_t>("root_rank", {any})),
        root_row(in.argument<int32_t>("root_row", {rows()})),
        num(in.count("num", rows())) {}

  int64_t rows() const { return root_rank.rows(); }
  Roots roots() const { return {root_rank, root_row}; }
};

// Distributes rows in equal shares: the first `more` ranks get one more than the others.
struct Shares {
  uint64_t each, more;

  JZTREE_BOTH Shares(uint64_t total, uint64_t ranks) : each(total / ranks), more(total % ranks) {}

  JZTREE_BOTH uint64_t start(uint64_t rank) const { return rank * each + std::min(rank, more); }
  // The rank of a place below the total.
  JZTREE_BOTH uint64_t rank_of(uint64_t place) const {
    uint64_t longer = more * (each + 1);
    return place < longer ? place / (each + 1) : more + (place - longer) / each;
  }
};

// The global order of particles: for each rank the listed groups that it owns, then its particles in no listed group.
struct GlobalOrder {
  static constexpr int64_t tally_words = 5;

  // For each rank: the number of particles in the listed groups that it owns, and in its largest group, two words each;
  // and the number of its particles in no listed group.
  const uint32_t* tallies;
  const uint64_t* starts;  // (ranks + 1,): running sums of particles_of
  int64_t ranks;

  JZTREE_BOTH static uint64_t particles_of(const uint32_t* tally) { return read_wide(tally) + tally[4]; }

  JZTREE_BOTH uint64_t total() const { return starts[ranks]; }
  // Start of a rank's listed groups and of its other particles, and the end of both.
  JZTREE_BOTH uint64_t groups(int64_t rank) const { return starts[rank]; }
  JZTREE_BOTH uint64_t unlisted(int64_t rank) const { return starts[rank] + read_wide(tallies + tally_words * rank); }
  JZTREE_BOTH uint64_t end(int64_t rank) const { return starts[rank + 1]; }
};

}  // namespace jztree
