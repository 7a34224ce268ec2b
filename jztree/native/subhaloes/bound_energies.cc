// Threads take candidates one by one. A candidate takes a few passes over its rows, far less than its potential.

#include "bound_energies.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/cpu/context.h"

namespace jztree {
namespace {

template <int D, typename T>
class FrameFinder {
 public:
  explicit FrameFinder(const BoundEnergies<D, T>& in)
      : in_(in), frame_{in.grouped.particles(),
                        in.internal.rows() > 0 ? in.internal.data : nullptr,
                        in.potential,
                        in.state,
                        0,
                        0,
                        {},
                        {}} {
    frame_.take(in.constants);
    in.grouped.box.read(frame_.particles.period);
  }

  void write(int64_t candidate) const {
    const int64_t begin = in_.grouped.offset[candidate], count = in_.grouped.count[candidate];
    if (begin < 0 || count < 0 || begin + count > in_.grouped.rows())
      throw Refusal("candidate " + std::to_string(candidate) + " has rows outside the particles.");
    if (count == 0) return;
    Frame<D, T> frame = frame_;
    const T* lowest = std::min_element(in_.potential + begin, in_.potential + begin + count);
    const int64_t centre = lowest - in_.potential;
    frame.particles.place_of(centre, frame.place);
    take_velocity(begin, count, frame);
    in_.centre[candidate] = static_cast<int32_t>(centre);
    for (int d = 0; d < D; ++d) in_.velocity[candidate * D + d] = static_cast<T>(frame.velocity[d]);
    for (int64_t row = begin; row < begin + count; ++row) frame.write(row);
  }

 private:
  // Set the velocity of the frame to the mean of the core.
  void take_velocity(int64_t begin, int64_t count, Frame<D, T>& frame) const {
    const int64_t size = core_size(count);
    std::vector<T> keys(in_.key + begin, in_.key + begin + count);
    std::nth_element(keys.begin(), keys.begin() + (size - 1), keys.end());
    const T highest = keys[static_cast<size_t>(size - 1)];
    int64_t equal = size - std::count_if(keys.begin(), keys.begin() + size, [&](T key) { return key < highest; });
    double mass = 0, sums[D] = {}, plain[D] = {};
    for (int64_t row = begin; row < begin + count; ++row) {
      const T key = in_.key[row];
      if (key > highest || (key == highest && equal-- <= 0)) continue;
      const double weight = frame.particles.mass_of(row);
      mass += weight;
      for (int d = 0; d < D; ++d) {
        sums[d] += weight * static_cast<double>(frame.particles.vel[row * D + d]);
        plain[d] += static_cast<double>(frame.particles.vel[row * D + d]);
      }
    }
    for (int d = 0; d < D; ++d) frame.velocity[d] = mass > 0 ? sums[d] / mass : plain[d] / static_cast<double>(size);
  }

  const BoundEnergies<D, T>& in_;
  Frame<D, T> frame_;
};

template <int D, typename T>
void bound_energies(const Parallel& parallel, const BoundEnergies<D, T>& in) {
  const FrameFinder<D, T> finder(in);
  const int64_t room = in.grouped.room();
  std::fill_n(in.centre, room, -1);
  std::fill_n(in.velocity, room * D, T{0});
  parallel.blocks(in.grouped.groups()(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t candidate = begin; candidate < end; ++candidate) finder.write(candidate);
  });
}

}  // namespace

JZTREE_KERNEL(bound_energies, BoundEnergies);

}  // namespace jztree
