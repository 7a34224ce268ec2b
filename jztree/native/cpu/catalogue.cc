// The friends-of-friends catalogue: the order of particles by group, and sums over groups.
//
// Sums are taken in float64 over a group's particles in their order, each group by one thread, so they have the same
// bits in every run. A group's centre is summed from nearest-image offsets to its first particle, which is right for
// groups smaller than half the box; spreads are summed in a second pass, relative to the mean. A group that straddles
// ranks is the sum of its parts in the order of the ranks, about the same first particle and the same mean.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "../common/morton.h"
#include "handler.h"
#include "parallel.h"

namespace jztree {
namespace {

// label[row] is the group's first row. Groups of at least npart_min particles come first, by first row, then all other
// rows; within each, rows keep their order. Returns the number of groups.
int64_t order_by_group(const Parallel& parallel, const int32_t* label, int64_t num, int64_t n, int64_t npart_min,
                       int32_t* order, int32_t* count, int32_t* offset) {
  std::unique_ptr<std::atomic<int32_t>[]> members(new std::atomic<int32_t>[static_cast<size_t>(num)]);
  auto member = [&](int64_t row) -> std::atomic<int32_t>& { return members[static_cast<size_t>(row)]; };
  parallel.blocks(num, 1 << 15, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) member(row).store(0, std::memory_order_relaxed);
  });
  parallel.blocks(num, 1 << 15, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) member(label[row]).fetch_add(1, std::memory_order_relaxed);
  });
  // From here on member(first row) is where the group's next particle goes, or -1 for groups that are too small.
  int64_t groups = 0, next = 0;
  for (int64_t row = 0; row < num; ++row) {
    int32_t size = member(row).load(std::memory_order_relaxed);
    bool listed = size >= npart_min;
    member(row).store(listed ? static_cast<int32_t>(next) : -1, std::memory_order_relaxed);
    if (!listed) continue;
    count[groups] = size;
    offset[groups++] = static_cast<int32_t>(next);
    next += size;
  }
  for (int64_t row = 0; row < num; ++row) {
    std::atomic<int32_t>& place = member(label[row]);
    int32_t at = place.load(std::memory_order_relaxed);
    if (at >= 0) place.store(at + 1, std::memory_order_relaxed);
    order[at >= 0 ? at : next++] = static_cast<int32_t>(row);
  }
  for (int64_t row = num; row < n; ++row) order[row] = static_cast<int32_t>(row);
  return groups;
}

ffi::Error group_order(ffi::ThreadPool pool, ffi::Buffer<ffi::S32> label, ffi::Buffer<ffi::S32> num,
                       ffi::Result<ffi::Buffer<ffi::S32>> order, ffi::Result<ffi::Buffer<ffi::S32>> ngroups,
                       ffi::Result<ffi::Buffer<ffi::S32>> count, ffi::Result<ffi::Buffer<ffi::S32>> offset,
                       int64_t npart_min) {
  return guarded([&] {
    int64_t n = static_cast<int64_t>(label.element_count()), rows = read_count(num, n);
    int64_t room = static_cast<int64_t>(count->element_count());
    if (npart_min < 1 || static_cast<int64_t>(order->element_count()) != n || room < n / npart_min ||
        static_cast<int64_t>(offset->element_count()) != room)
      return invalid("group_order was called with arrays that do not fit together.");
    for (int64_t row = 0; row < rows; ++row)
      if (label.typed_data()[row] < 0 || label.typed_data()[row] >= rows)
        return invalid("row " + std::to_string(row) + " has a group label outside the particles.");
    std::fill_n(count->typed_data(), room, 0);
    std::fill_n(offset->typed_data(), room, 0);
    ngroups->typed_data()[0] =
        static_cast<int32_t>(order_by_group(Parallel(pool), label.typed_data(), rows, n, npart_min, order->typed_data(),
                                            count->typed_data(), offset->typed_data()));
    return ffi::Error::Success();
  });
}

// Sums over a group, or over one rank's part of it. All are doubles, so it travels as words.
template <int D>
struct Moments {
  double count, mass;
  double first[D];                        // position of the group's first particle
  double centre[D];                       // weighted offsets to it
  double velocity[D];                     // weighted velocities
  double inertia, dispersion, distance2;  // about the means; the last is the largest

  // Massless groups still have a centre: the unweighted one.
  bool weighted() const { return mass > 0; }
  double norm() const { return weighted() ? mass : count; }

  // Joins a part that comes later in the order of particles.
  void join(const Moments& part) {
    count += part.count;
    mass += part.mass;
    for (int d = 0; d < D; ++d) {
      centre[d] += part.centre[d];
      velocity[d] += part.velocity[d];
    }
    inertia += part.inertia;
    dispersion += part.dispersion;
    distance2 = std::max(distance2, part.distance2);
  }

  void means(double* position, double* speed) const {
    for (int d = 0; d < D; ++d) {
      position[d] = first[d] + centre[d] / norm();
      speed[d] = velocity[d] / norm();
    }
  }
};

// pos, mass and vel are in group order.
template <int D, typename T>
struct GroupSums {
  const T *pos, *mass, *vel;  // mass and vel may be null
  bool shared_mass;
  double period[D];
  T *out_mass, *out_centre, *out_inertia, *out_radius, *out_velocity, *out_dispersion;

  double weight(int64_t row) const { return mass ? static_cast<double>(mass[shared_mass ? 0 : row]) : 1.; }

  void offset(int64_t row, const double* from, double* out) const {
    for (int d = 0; d < D; ++d) {
      out[d] = static_cast<double>(pos[row * D + d]) - from[d];
      if (period[d] > 0) out[d] -= period[d] * std::nearbyint(out[d] / period[d]);
    }
  }

  // The sums in three passes over a part, each of which needs those before it over the whole group.
  void add_masses(int64_t begin, int64_t end, Moments<D>& part) const {
    double total = 0;
    for (int64_t row = begin; row < end; ++row) total += weight(row);
    part.mass = total;
    part.count = static_cast<double>(end - begin);
    for (int d = 0; d < D && begin < end; ++d) part.first[d] = static_cast<double>(pos[begin * D + d]);
  }

  void add_centres(int64_t begin, int64_t end, const Moments<D>& group, Moments<D>& part) const {
    double centre[D] = {}, velocity[D] = {}, between[D];
    bool weighted = group.weighted();
    for (int64_t row = begin; row < end; ++row) {
      double w = weighted ? weight(row) : 1.;
      offset(row, group.first, between);
      for (int d = 0; d < D; ++d) {
        centre[d] += w * between[d];
        if (vel) velocity[d] += w * static_cast<double>(vel[row * D + d]);
      }
    }
    std::copy_n(centre, D, part.centre);
    std::copy_n(velocity, D, part.velocity);
  }

  void add_spreads(int64_t begin, int64_t end, const Moments<D>& group, Moments<D>& part) const {
    double inertia = 0, largest = 0, dispersion = 0, centre[D], velocity[D], between[D];
    bool weighted = group.weighted();
    group.means(centre, velocity);
    for (int64_t row = begin; row < end; ++row) {
      double w = weighted ? weight(row) : 1., distance2 = 0, speed2 = 0;
      offset(row, centre, between);
      for (int d = 0; d < D; ++d) {
        distance2 += between[d] * between[d];
        double relative = vel ? static_cast<double>(vel[row * D + d]) - velocity[d] : 0.;
        speed2 += relative * relative;
      }
      inertia += w * distance2;
      dispersion += w * speed2;
      largest = std::max(largest, distance2);
    }
    part.inertia = inertia;
    part.dispersion = dispersion;
    part.distance2 = largest;
  }

  Moments<D> group(int64_t begin, int64_t end) const {
    Moments<D> sums{};
    add_masses(begin, end, sums);
    add_centres(begin, end, sums, sums);
    add_spreads(begin, end, sums, sums);
    return sums;
  }

  void write(int64_t group, const Moments<D>& sums) const {
    double centre[D], velocity[D];
    sums.means(centre, velocity);
    out_mass[group] = static_cast<T>(sums.mass);
    for (int d = 0; d < D; ++d) {
      T inside = wrap(static_cast<T>(wrap(centre[d], period[d])), period[d]);
      // Rounding may lift a centre just below the upper end onto it, which is the same place as 0.
      out_centre[group * D + d] = period[d] > 0 && static_cast<double>(inside) >= period[d] ? T{0} : inside;
      if (vel) out_velocity[group * D + d] = static_cast<T>(velocity[d]);
    }
    out_inertia[group] = static_cast<T>(std::sqrt(sums.inertia / sums.norm()));
    out_radius[group] = static_cast<T>(std::sqrt(sums.distance2));
    if (vel) out_dispersion[group] = static_cast<T>(std::sqrt(sums.dispersion / sums.norm() / D));
  }
};

// The groups that a rank holds parts of besides whole ones: the head continues the last group of the ranks before, and
// the tail, the last group that begins here, may go on on the ranks behind.
template <int D>
struct Ends {
  Moments<D> head, tail;
};

// What all ranks know of their ends.
template <int D>
class AllEnds {
 public:
  // words: (r, words of Ends).
  bool read(const ffi::Buffer<ffi::U32>& words) {
    if (words.size_bytes() % sizeof(Ends<D>) != 0) return false;
    ends_.resize(words.size_bytes() / sizeof(Ends<D>));
    if (!ends_.empty()) std::memcpy(ends_.data(), words.typed_data(), words.size_bytes());
    return true;
  }

  bool empty() const { return ends_.empty(); }
  bool has(int64_t rank) const { return rank >= 0 && rank < static_cast<int64_t>(ends_.size()); }
  const Ends<D>& of(int64_t rank) const { return ends_[static_cast<size_t>(rank)]; }

  // The last group that begins on this rank, over all its parts.
  Moments<D> tail_group(int64_t rank) const {
    Moments<D> group = of(rank).tail;
    for (int64_t r = rank + 1; has(r) && of(r).head.count > 0; ++r) {
      group.join(of(r).head);
      if (of(r).tail.count > 0) break;
    }
    return group;
  }

  // The group of which this rank's head is a part, over all its parts.
  Moments<D> head_group(int64_t rank) const {
    int64_t owner = rank - 1;
    while (owner > 0 && of(owner).tail.count == 0) --owner;
    return has(owner) ? tail_group(owner) : Moments<D>{};
  }

 private:
  std::vector<Ends<D>> ends_;
};

// Which rows are in which group.
struct Segments {
  const int32_t *count, *offset;
  int64_t groups, rows, room;

  bool read(const ffi::Buffer<ffi::S32>& ngroups, const ffi::Buffer<ffi::S32>& counts,
            const ffi::Buffer<ffi::S32>& offsets, int64_t n) {
    room = static_cast<int64_t>(counts.element_count());
    groups = read_count(ngroups, room);
    count = counts.typed_data();
    offset = offsets.typed_data();
    rows = n;
    if (static_cast<int64_t>(offsets.element_count()) != room) return false;
    for (int64_t g = 0; g < groups; ++g)
      if (offset[g] < 0 || count[g] < 0 || end(g) > rows) return false;
    return true;
  }

  int64_t begin(int64_t group) const { return offset[group]; }
  int64_t end(int64_t group) const { return static_cast<int64_t>(offset[group]) + count[group]; }
};

bool has_elements(const ffi::AnyBuffer& buffer, ffi::DataType type, int64_t elements) {
  return buffer.element_type() == type && static_cast<int64_t>(buffer.element_count()) == elements;
}

// An empty mass or vel is one that the particles do not have; a mass of one element is shared by all.
template <int D, typename T>
bool read_particles(const ffi::AnyBuffer& pos, const ffi::AnyBuffer& mass, const ffi::AnyBuffer& vel,
                    const ffi::AnyBuffer& box, GroupSums<D, T>& sums) {
  int64_t n = pos.dimensions()[0];
  int64_t masses = static_cast<int64_t>(mass.element_count()), vels = static_cast<int64_t>(vel.element_count());
  sums.pos = pos.typed_data<T>();
  sums.mass = masses ? mass.typed_data<T>() : nullptr;
  sums.vel = vels ? vel.typed_data<T>() : nullptr;
  sums.shared_mass = masses == 1;
  return read_exact(box, D, sums.period) && (masses <= 1 || masses == n) && (vels == 0 || vels == n * D) &&
         mass.element_type() == pos.element_type() && vel.element_type() == pos.element_type();
}

// One of three passes over the rows of groups that straddle ranks. known: what all ranks have found in the passes
// before. head: the leading rows that continue the last group of the ranks before.
ffi::Error straddling_sums(ffi::ThreadPool pool, ffi::AnyBuffer pos, ffi::AnyBuffer mass, ffi::AnyBuffer vel,
                           ffi::Buffer<ffi::S32> ngroups, ffi::Buffer<ffi::S32> count, ffi::Buffer<ffi::S32> offset,
                           ffi::Buffer<ffi::S32> head, ffi::AnyBuffer box, ffi::Buffer<ffi::S32> pass,
                           ffi::Buffer<ffi::U32> known, ffi::Buffer<ffi::S32> rank,
                           ffi::Result<ffi::Buffer<ffi::U32>> found) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    GroupSums<D, T> sums{};
    Segments segments{};
    AllEnds<D> all;
    int64_t me = rank.typed_data()[0];
    if (!read_particles(pos, mass, vel, box, sums) || !segments.read(ngroups, count, offset, pos.dimensions()[0]) ||
        !all.read(known) || !all.has(me) || found->size_bytes() != sizeof(Ends<D>))
      return invalid("straddling_sums was called with arrays that do not fit together.");
    int64_t last = segments.groups - 1;
    int64_t leading = read_count(head, last >= 0 ? segments.begin(0) : segments.rows);
    Ends<D> ends = all.of(me);
    auto add = [&](int64_t begin, int64_t end, const Moments<D>& group, Moments<D>& part) {
      if (pass.typed_data()[0] == 0) sums.add_masses(begin, end, part);
      if (pass.typed_data()[0] == 1) sums.add_centres(begin, end, group, part);
      if (pass.typed_data()[0] == 2) sums.add_spreads(begin, end, group, part);
    };
    Parallel(pool).blocks(2, 1, [&](int64_t from, int64_t to) {
      for (int64_t end = from; end < to; ++end) {
        if (end == 0 && leading > 0) add(0, leading, all.head_group(me), ends.head);
        if (end == 1 && last >= 0) add(segments.begin(last), segments.end(last), all.tail_group(me), ends.tail);
      }
    });
    std::memcpy(found->typed_data(), &ends, sizeof(ends));
    return ffi::Error::Success();
  });
}

// known: empty, or what `straddling_sums` found on all ranks; the last group is then the sum over its parts.
ffi::Error catalogue(ffi::ThreadPool pool, ffi::AnyBuffer pos, ffi::AnyBuffer mass, ffi::AnyBuffer vel,
                     ffi::Buffer<ffi::S32> ngroups, ffi::Buffer<ffi::S32> count, ffi::Buffer<ffi::S32> offset,
                     ffi::AnyBuffer box, ffi::Buffer<ffi::U32> known, ffi::Buffer<ffi::S32> rank,
                     ffi::Result<ffi::Buffer<ffi::S32>> out_count, ffi::Result<ffi::AnyBuffer> out_mass,
                     ffi::Result<ffi::AnyBuffer> centre, ffi::Result<ffi::AnyBuffer> inertia,
                     ffi::Result<ffi::AnyBuffer> radius, ffi::Result<ffi::AnyBuffer> velocity,
                     ffi::Result<ffi::AnyBuffer> dispersion) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    GroupSums<D, T> sums{};
    Segments segments{};
    AllEnds<D> all;
    int64_t me = rank.typed_data()[0];
    if (!read_particles(pos, mass, vel, box, sums) || !segments.read(ngroups, count, offset, pos.dimensions()[0]) ||
        !all.read(known) || !(all.empty() || all.has(me)))
      return invalid("catalogue was called with arrays that do not fit together.");
    int64_t room = segments.room, speeds = sums.vel ? room : 0;
    auto fits = [&](auto& out, int64_t elements) { return has_elements(*out, pos.element_type(), elements); };
    if (static_cast<int64_t>(out_count->element_count()) != room || !fits(out_mass, room) || !fits(centre, room * D) ||
        !fits(inertia, room) || !fits(radius, room) || !fits(velocity, speeds * D) || !fits(dispersion, speeds))
      return invalid("catalogue was called with arrays that do not fit together.");
    sums.out_mass = out_mass->typed_data<T>();
    sums.out_centre = centre->typed_data<T>();
    sums.out_inertia = inertia->typed_data<T>();
    sums.out_radius = radius->typed_data<T>();
    sums.out_velocity = velocity->typed_data<T>();
    sums.out_dispersion = dispersion->typed_data<T>();
    for (auto* out : {&out_mass, &centre, &inertia, &radius, &velocity, &dispersion})
      std::fill_n((*out)->template typed_data<T>(), (*out)->element_count(), T{0});
    std::copy_n(segments.count, room, out_count->typed_data());
    int64_t whole = all.empty() ? segments.groups : std::max<int64_t>(0, segments.groups - 1);
    Parallel(pool).blocks(whole, 16, [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) sums.write(g, sums.group(segments.begin(g), segments.end(g)));
    });
    if (whole < segments.groups) {
      Moments<D> tail = all.tail_group(me);
      sums.write(whole, tail);
      out_count->typed_data()[whole] = static_cast<int32_t>(tail.count);
    }
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_group_order, group_order,
               ffi::Ffi::Bind()
                   .Ctx<ffi::ThreadPool>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Ret<ffi::Buffer<ffi::S32>>()
                   .Ret<ffi::Buffer<ffi::S32>>()
                   .Ret<ffi::Buffer<ffi::S32>>()
                   .Ret<ffi::Buffer<ffi::S32>>()
                   .Attr<int64_t>("npart_min"));

JZTREE_HANDLER(jztree_straddling_sums, straddling_sums,
               ffi::Ffi::Bind()
                   .Ctx<ffi::ThreadPool>()
                   .Arg<ffi::AnyBuffer>()
                   .Arg<ffi::AnyBuffer>()
                   .Arg<ffi::AnyBuffer>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::AnyBuffer>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::Buffer<ffi::U32>>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Ret<ffi::Buffer<ffi::U32>>());

JZTREE_HANDLER(jztree_catalogue, catalogue,
               ffi::Ffi::Bind()
                   .Ctx<ffi::ThreadPool>()
                   .Arg<ffi::AnyBuffer>()
                   .Arg<ffi::AnyBuffer>()
                   .Arg<ffi::AnyBuffer>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Arg<ffi::AnyBuffer>()
                   .Arg<ffi::Buffer<ffi::U32>>()
                   .Arg<ffi::Buffer<ffi::S32>>()
                   .Ret<ffi::Buffer<ffi::S32>>()
                   .Ret<ffi::AnyBuffer>()
                   .Ret<ffi::AnyBuffer>()
                   .Ret<ffi::AnyBuffer>()
                   .Ret<ffi::AnyBuffer>()
                   .Ret<ffi::AnyBuffer>()
                   .Ret<ffi::AnyBuffer>());

}  // namespace jztree
