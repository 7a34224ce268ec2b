// The friends-of-friends catalogue: sums over groups (moments.h) of particles in group order.
#pragma once

#include "common/arguments.h"
#include "moments.h"

namespace jztree {

// Particles in group order, and the rows of each group.
template <int D, typename T>
struct GroupedParticles {
  static constexpr unsigned compiled_dims = dims_up_to(catalogue_dims);

  Array<const T> pos;   // (n, D)
  Array<const T> mass;  // (n,); one element if it is shared, no elements if every particle counts 1
  Array<const T> vel;   // (n, D), or no rows
  Lengths box;
  const int32_t* ngroups;
  Array<const int32_t> count;  // (room,)
  const int32_t* offset;       // (room,)

  explicit GroupedParticles(Arguments& in)
      : pos(in.argument<T>("pos", {any, D})),
        mass(in.argument<T>("mass", {any})),
        vel(in.argument<T>("vel", {any, D})),
        box(in.lengths("box", D)),
        ngroups(in.number("ngroups")),
        count(in.argument<int32_t>("count", {any})),
        offset(in.argument<int32_t>("offset", {room()})) {
    in.expect(mass.rows() <= 1 || mass.rows() == pos.rows(), mass, 1, "mass",
              "of the length of pos, or of at most one element");
    in.expect(vel.rows() == 0 || vel.rows() == pos.rows(), vel, 2, "vel", "of the length of pos, or without rows");
  }

  int64_t rows() const { return pos.rows(); }
  int64_t room() const { return count.rows(); }
  Count groups() const { return {ngroups, room()}; }
  bool moving() const { return vel.rows() > 0; }
  // Without the period, which is known on the device that runs the kernel.
  GroupParticles<D, T> particles() const {
    return {pos, mass.rows() > 0 ? mass.data : nullptr, moving() ? vel.data : nullptr, mass.rows() == 1, {}};
  }
};

// The ends (moments.h) as known to every rank, (ranks, words of Ends), and this rank.
template <int D>
struct KnownEnds {
  static constexpr int64_t words = sizeof(Ends<D>) / sizeof(uint32_t);

  Array<const uint32_t> known;
  const int32_t* rank;

  explicit KnownEnds(Arguments& in) : known(in.argument<uint32_t>("known", {any, words})), rank(in.number("rank")) {}

  int64_t ranks() const { return known.rows(); }
};

template <int D, typename T>
struct Catalogue {
  static constexpr unsigned compiled_dims = dims_up_to(catalogue_dims);

  GroupedParticles<D, T> grouped;
  KnownEnds<D> ends;  // empty on one device; over ranks, the results of all three passes, which give the last group
  int64_t room, speeds;
  int32_t* count;
  CatalogueColumns<D, T> columns;

  explicit Catalogue(Arguments& in)
      : grouped(in),
        ends(in),
        room(grouped.room()),
        speeds(grouped.moving() ? room : 0),
        count(in.result<int32_t>("count", {room})),
        columns{in.result<T>("mass", {room}),         in.result<T>("centre", {room, D}),
                in.result<T>("size", {room}),         in.result<T>("radius", {room}),
                in.result<T>("shape", {room, D, D}),  in.result<T>("velocity", {speeds, D}),
                in.result<T>("dispersion", {speeds}), in.result<T>("rotation", {speeds, Pairs<D>::distinct})} {}

  // Call visit(column, number of its elements).
  template <typename Visit>
  void each_column(const Visit& visit) const {
    visit(columns.mass, room);
    visit(columns.centre, room * D);
    visit(columns.size, room);
    visit(columns.radius, room);
    visit(columns.shape, room * D * D);
    visit(columns.velocity, speeds * D);
    visit(columns.dispersion, speeds);
    visit(columns.rotation, speeds * Pairs<D>::distinct);
  }
};

// One of three passes over the rows of groups that straddle ranks.
template <int D, typename T>
struct StraddlingSums {
  static constexpr unsigned compiled_dims = dims_up_to(catalogue_dims);

  GroupedParticles<D, T> grouped;
  KnownEnds<D> ends;    // results of the previous passes on all ranks
  const int32_t* head;  // number of leading rows that continue the last group of the previous ranks
  const int32_t* pass;  // a SumPass
  uint32_t* found;

  explicit StraddlingSums(Arguments& in)
      : grouped(in),
        ends(in),
        head(in.number("head")),
        pass(in.number("pass")),
        found(in.result<uint32_t>("found", {KnownEnds<D>::words})) {
    in.expect(ends.ranks() > 0, ends.known, 2, "known", "of at least one rank");
  }
};

}  // namespace jztree
