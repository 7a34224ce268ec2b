// The destination of each particle if each rank gets an equal share of the group order, and the groups that begin among
// the received particles (grouping.h).
#pragma once

#include "grouping.h"

namespace jztree {

// The destination of a particle is row target[row] on rank to_rank[row]. For the first particle of a listed group,
// target[row] is the bitwise complement of that row.
struct GroupTargets : RootedRows {
  const int32_t* label;           // (n,)
  const uint32_t* places;         // (n, 2)
  Array<const uint32_t> tallies;  // (ranks, words)
  int32_t *to_rank, *target;      // (n,)

  explicit GroupTargets(Arguments& in)
      : RootedRows(in),
        label(in.argument<int32_t>("label", {rows()})),
        places(in.argument<uint32_t>("places", {rows(), 2})),
        tallies(in.argument<uint32_t>("tallies", {any, GlobalOrder::tally_words})),
        to_rank(in.result<int32_t>("to_rank", {rows()})),
        target(in.result<int32_t>("target", {rows()})) {
    in.expect(ranks() > 0, tallies, 2, "tallies", "of at least one rank");
  }

  int64_t ranks() const { return tallies.rows(); }
};

// place[i] = the final place of received row i, which orders all n rows; the groups that begin here; and the number of
// leading rows that continue the last group of the previous ranks.
struct GroupSegments {
  const int32_t* rank;
  Array<const int32_t> target;  // (n,)
  Count num;
  Array<const uint32_t> tallies;  // (ranks, words)
  int32_t* place;                 // (n,)
  int32_t *head, *ngroups;
  Array<int32_t> count;  // (room,)
  int32_t* offset;       // (room,)

  explicit GroupSegments(Arguments& in)
      : rank(in.number("rank")),
        target(in.argument<int32_t>("target", {any})),
        num(in.count("num", target.rows())),
        tallies(in.argument<uint32_t>("tallies", {any, GlobalOrder::tally_words})),
        place(in.result<int32_t>("place", {target.rows()})),
        head(in.result<int32_t>("head", {})),
        ngroups(in.result<int32_t>("ngroups", {})),
        count(in.result<int32_t>("count", {any})),
        offset(in.result<int32_t>("offset", {room()})) {
    in.expect(ranks() > 0, tallies, 2, "tallies", "of at least one rank");
  }

  int64_t rows() const { return target.rows(); }
  int64_t ranks() const { return tallies.rows(); }
  int64_t room() const { return count.rows(); }
};

}  // namespace jztree
