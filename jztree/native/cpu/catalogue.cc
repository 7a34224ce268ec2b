// The friends-of-friends catalogue: the order of particles by group, and sums over groups.
//
// Sums are taken in float64 over a group's particles in their order, each group by one thread, so they have the same
// bits in every run. A group's centre is summed from nearest-image offsets to its first particle, which is right for
// groups smaller than half the box; spreads are summed in a second pass, relative to the mean.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>

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

  void group(int64_t group, int64_t begin, int64_t end) const {
    double total = 0, first[D], centre[D] = {}, velocity[D] = {}, between[D];
    for (int64_t row = begin; row < end; ++row) total += weight(row);
    // Massless groups still have a centre: the unweighted one.
    bool weighted = total > 0;
    double norm = weighted ? total : static_cast<double>(end - begin);
    for (int d = 0; d < D; ++d) first[d] = static_cast<double>(pos[begin * D + d]);
    for (int64_t row = begin; row < end; ++row) {
      double w = weighted ? weight(row) : 1.;
      offset(row, first, between);
      for (int d = 0; d < D; ++d) {
        centre[d] += w * between[d];
        if (vel) velocity[d] += w * static_cast<double>(vel[row * D + d]);
      }
    }
    for (int d = 0; d < D; ++d) {
      centre[d] = first[d] + centre[d] / norm;
      velocity[d] /= norm;
    }
    spreads(group, begin, end, weighted, norm, centre, velocity);
    out_mass[group] = static_cast<T>(total);
    for (int d = 0; d < D; ++d) {
      T inside = wrap(static_cast<T>(wrap(centre[d], period[d])), period[d]);
      // Rounding may lift a centre just below the upper end onto it, which is the same place as 0.
      out_centre[group * D + d] = period[d] > 0 && static_cast<double>(inside) >= period[d] ? T{0} : inside;
      if (vel) out_velocity[group * D + d] = static_cast<T>(velocity[d]);
    }
  }

  void spreads(int64_t group, int64_t begin, int64_t end, bool weighted, double norm, const double* centre,
               const double* velocity) const {
    double inertia = 0, largest = 0, dispersion = 0, between[D];
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
    out_inertia[group] = static_cast<T>(std::sqrt(inertia / norm));
    out_radius[group] = static_cast<T>(std::sqrt(largest));
    if (vel) out_dispersion[group] = static_cast<T>(std::sqrt(dispersion / norm / D));
  }
};

// pos, mass and vel are in group order. An empty mass or vel is one that the particles do not have; a mass of one
// element is shared by all.
ffi::Error catalogue(ffi::ThreadPool pool, ffi::AnyBuffer pos, ffi::AnyBuffer mass, ffi::AnyBuffer vel,
                     ffi::Buffer<ffi::S32> ngroups, ffi::Buffer<ffi::S32> count, ffi::Buffer<ffi::S32> offset,
                     ffi::AnyBuffer box, ffi::Result<ffi::AnyBuffer> out_mass, ffi::Result<ffi::AnyBuffer> centre,
                     ffi::Result<ffi::AnyBuffer> inertia, ffi::Result<ffi::AnyBuffer> radius,
                     ffi::Result<ffi::AnyBuffer> velocity, ffi::Result<ffi::AnyBuffer> dispersion) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    int64_t n = pos.dimensions()[0], room = static_cast<int64_t>(count.element_count());
    int64_t masses = static_cast<int64_t>(mass.element_count()), vels = static_cast<int64_t>(vel.element_count());
    int64_t groups = read_count(ngroups, room);
    auto fits = [&](const auto& buffer, int64_t elements) {
      return buffer.element_type() == pos.element_type() && static_cast<int64_t>(buffer.element_count()) == elements;
    };
    GroupSums<D, T> sums{};
    if (!read_exact(box, D, sums.period) || !(masses <= 1 || masses == n) || !(vels == 0 || vels == n * D) ||
        !fits(mass, masses) || !fits(vel, vels) || static_cast<int64_t>(offset.element_count()) != room ||
        !fits(*out_mass, room) || !fits(*centre, room * D) || !fits(*inertia, room) || !fits(*radius, room) ||
        !fits(*velocity, vels ? room * D : 0) || !fits(*dispersion, vels ? room : 0))
      return invalid("catalogue was called with arrays that do not fit together.");
    sums.pos = pos.typed_data<T>();
    sums.mass = masses ? mass.typed_data<T>() : nullptr;
    sums.vel = vels ? vel.typed_data<T>() : nullptr;
    sums.shared_mass = masses == 1;
    sums.out_mass = out_mass->typed_data<T>();
    sums.out_centre = centre->typed_data<T>();
    sums.out_inertia = inertia->typed_data<T>();
    sums.out_radius = radius->typed_data<T>();
    sums.out_velocity = velocity->typed_data<T>();
    sums.out_dispersion = dispersion->typed_data<T>();
    for (auto* out : {&out_mass, &centre, &inertia, &radius, &velocity, &dispersion})
      std::fill_n((*out)->template typed_data<T>(), (*out)->element_count(), T{0});
    Parallel(pool).blocks(groups, 16, [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) {
        int64_t first = offset.typed_data()[g];
        sums.group(g, first, first + count.typed_data()[g]);
      }
    });
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
                   .Ret<ffi::AnyBuffer>()
                   .Ret<ffi::AnyBuffer>()
                   .Ret<ffi::AnyBuffer>()
                   .Ret<ffi::AnyBuffer>()
                   .Ret<ffi::AnyBuffer>()
                   .Ret<ffi::AnyBuffer>());

}  // namespace jztree
