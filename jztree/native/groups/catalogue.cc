// The friends-of-friends catalogue: the order of particles by group, and sums over groups.
//
// Sums (moments.h) are taken over a group's particles in their order, each group by one thread, so they have the
// same bits in every run.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "moments.h"
#include "common/cpu/handler.h"
#include "common/cpu/memory.h"
#include "common/cpu/parallel.h"

namespace jztree {
namespace {

// label[row] is the group's first row. Groups of at least npart_min particles come first, by first row, then all other
// rows; within each, rows keep their order. Returns the number of groups.
int64_t order_by_group(const Parallel& parallel, const int32_t* label, int64_t num, int64_t n, int64_t npart_min,
                       int32_t* order, int32_t* count, int32_t* offset) {
  Scratch<std::atomic<int32_t>> members(num);
  auto member = [&](int64_t row) -> std::atomic<int32_t>& { return members[row]; };
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
                    const ffi::AnyBuffer& box, GroupParticles<D, T>& particles) {
  int64_t n = pos.dimensions()[0];
  int64_t masses = static_cast<int64_t>(mass.element_count()), vels = static_cast<int64_t>(vel.element_count());
  particles.pos = pos.typed_data<T>();
  particles.mass = masses ? mass.typed_data<T>() : nullptr;
  particles.vel = vels ? vel.typed_data<T>() : nullptr;
  particles.shared_mass = masses == 1;
  return read_exact(box, D, particles.period) && (masses <= 1 || masses == n) && (vels == 0 || vels == n * D) &&
         mass.element_type() == pos.element_type() && vel.element_type() == pos.element_type();
}

// What all ranks found: (r, words of Ends).
template <int D>
std::vector<Ends<D>> read_ends(const ffi::Buffer<ffi::U32>& words) {
  std::vector<Ends<D>> ends(words.size_bytes() / sizeof(Ends<D>));
  if (!ends.empty()) std::memcpy(ends.data(), words.typed_data(), ends.size() * sizeof(Ends<D>));
  return ends;
}

template <int D, typename T>
void add_part(const GroupParticles<D, T>& particles, SumPass pass, int64_t begin, int64_t end, const Moments<D>& group,
              Moments<D>& part) {
  Moments<D> found = particles.sum(pass, begin, end, 1, group);
  if (begin < end) particles.place_of(begin, found.first);
  part.take(pass, found);
}

// One of three passes over the rows of groups that straddle ranks. known: what all ranks have found in the passes
// before. head: the leading rows that continue the last group of the ranks before.
ffi::Error straddling_sums(ffi::ThreadPool pool, ffi::AnyBuffer pos, ffi::AnyBuffer mass, ffi::AnyBuffer vel,
                           ffi::Buffer<ffi::S32> ngroups, ffi::Buffer<ffi::S32> count, ffi::Buffer<ffi::S32> offset,
                           ffi::Buffer<ffi::S32> head, ffi::AnyBuffer box, ffi::Buffer<ffi::S32> pass,
                           ffi::Buffer<ffi::U32> known, ffi::Buffer<ffi::S32> rank,
                           ffi::Result<ffi::Buffer<ffi::U32>> found) {
  return dispatch<catalogue_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    GroupParticles<D, T> particles{};
    Segments segments{};
    std::vector<Ends<D>> list = read_ends<D>(known);
    AllEnds<D> all{list.data(), static_cast<int64_t>(list.size())};
    int64_t me = rank.typed_data()[0];
    if (!read_particles(pos, mass, vel, box, particles) ||
        !segments.read(ngroups, count, offset, pos.dimensions()[0]) || known.size_bytes() % sizeof(Ends<D>) != 0 ||
        !all.has(me) || found->size_bytes() != sizeof(Ends<D>))
      return invalid("straddling_sums was called with arrays that do not fit together.");
    int64_t last = segments.groups - 1;
    int64_t leading = read_count(head, last >= 0 ? segments.begin(0) : segments.rows);
    Ends<D> ends = all.ends[me];
    auto number = static_cast<SumPass>(pass.typed_data()[0]);
    Parallel(pool).blocks(2, 1, [&](int64_t from, int64_t to) {
      for (int64_t end = from; end < to; ++end) {
        if (end == 0 && leading > 0) add_part(particles, number, 0, leading, all.head_group(me), ends.head);
        if (end == 1 && last >= 0)
          add_part(particles, number, segments.begin(last), segments.end(last), all.tail_group(me), ends.tail);
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
                     ffi::Result<ffi::AnyBuffer> centre, ffi::Result<ffi::AnyBuffer> size,
                     ffi::Result<ffi::AnyBuffer> radius, ffi::Result<ffi::AnyBuffer> shape,
                     ffi::Result<ffi::AnyBuffer> velocity, ffi::Result<ffi::AnyBuffer> dispersion,
                     ffi::Result<ffi::AnyBuffer> rotation) {
  return dispatch<catalogue_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    GroupParticles<D, T> particles{};
    Segments segments{};
    std::vector<Ends<D>> list = read_ends<D>(known);
    AllEnds<D> all{list.data(), static_cast<int64_t>(list.size())};
    int64_t me = rank.typed_data()[0];
    if (!read_particles(pos, mass, vel, box, particles) ||
        !segments.read(ngroups, count, offset, pos.dimensions()[0]) || known.size_bytes() % sizeof(Ends<D>) != 0 ||
        !(list.empty() || all.has(me)))
      return invalid("catalogue was called with arrays that do not fit together.");
    int64_t room = segments.room, speeds = particles.vel ? room : 0;
    auto fits = [&](auto& out, int64_t elements) { return has_elements(*out, pos.element_type(), elements); };
    if (static_cast<int64_t>(out_count->element_count()) != room || !fits(out_mass, room) || !fits(centre, room * D) ||
        !fits(size, room) || !fits(radius, room) || !fits(shape, room * D * D) || !fits(velocity, speeds * D) ||
        !fits(dispersion, speeds) || !fits(rotation, speeds * Pairs<D>::distinct))
      return invalid("catalogue was called with arrays that do not fit together.");
    CatalogueColumns<D, T> columns{out_mass->typed_data<T>(),   centre->typed_data<T>(),  size->typed_data<T>(),
                                   radius->typed_data<T>(),     shape->typed_data<T>(),   velocity->typed_data<T>(),
                                   dispersion->typed_data<T>(), rotation->typed_data<T>()};
    auto write = [&](int64_t g, const Moments<D>& sums) {
      columns.write(g, sums, particles.period, particles.vel != nullptr);
    };
    for (auto* out : {&out_mass, &centre, &size, &radius, &shape, &velocity, &dispersion, &rotation})
      std::fill_n((*out)->template typed_data<T>(), (*out)->element_count(), T{0});
    std::copy_n(segments.count, room, out_count->typed_data());
    int64_t whole = list.empty() ? segments.groups : std::max<int64_t>(0, segments.groups - 1);
    Parallel(pool).blocks(whole, 16, [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) {
        Moments<D> sums{};
        for (SumPass pass : {SumPass::masses, SumPass::centres, SumPass::spreads})
          add_part(particles, pass, segments.begin(g), segments.end(g), sums, sums);
        write(g, sums);
      }
    });
    if (whole < segments.groups) {
      Moments<D> tail = all.tail_group(me);
      write(whole, tail);
      out_count->typed_data()[whole] = static_cast<int32_t>(tail.count);
    }
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_group_order, group_order, "npart_min");
JZTREE_HANDLER(jztree_straddling_sums, straddling_sums);
JZTREE_HANDLER(jztree_catalogue, catalogue);

}  // namespace jztree
