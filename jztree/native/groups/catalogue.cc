// Sums are taken over a group's particles in their order, each group by one thread, so they have the same bits in every
// run.

#include "catalogue.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/cpu/context.h"

namespace jztree {
namespace {

// The rows of each group.
struct Segments {
  const int32_t *count, *offset;
  int64_t groups;

  template <int D, typename T>
  explicit Segments(const GroupedParticles<D, T>& in) : count(in.count), offset(in.offset), groups(in.groups()()) {
    for (int64_t g = 0; g < groups; ++g)
      if (offset[g] < 0 || count[g] < 0 || end(g) > in.rows())
        throw Refusal("group " + std::to_string(g) + " has rows outside the particles.");
  }

  int64_t begin(int64_t group) const { return offset[group]; }
  int64_t end(int64_t group) const { return static_cast<int64_t>(offset[group]) + count[group]; }
};

template <int D, typename T>
GroupParticles<D, T> read_particles(const GroupedParticles<D, T>& in) {
  GroupParticles<D, T> particles = in.particles();
  in.box.read(particles.period);
  return particles;
}

// The words do not have the alignment of doubles.
template <int D>
std::vector<Ends<D>> read_ends(const KnownEnds<D>& in) {
  std::vector<Ends<D>> ends(static_cast<size_t>(in.ranks()));
  if (ends.empty()) return ends;
  if (*in.rank < 0 || *in.rank >= in.ranks())
    throw Refusal("the rank is invalid; it must be from 0 to the number of ranks minus 1.");
  std::memcpy(ends.data(), in.known, ends.size() * sizeof(Ends<D>));
  return ends;
}

template <int D, typename T>
void add_part(const GroupParticles<D, T>& particles, SumPass pass, int64_t begin, int64_t end, const Moments<D>& group,
              Moments<D>& part) {
  Moments<D> found = RowSums<D, T>(particles, pass, group).of(begin, end, 1);
  if (begin < end) particles.place_of(begin, found.first);
  part.take(pass, found);
}

template <int D, typename T>
void straddling_sums(const Parallel& parallel, const StraddlingSums<D, T>& in) {
  GroupParticles<D, T> particles = read_particles(in.grouped);
  Segments segments(in.grouped);
  std::vector<Ends<D>> list = read_ends(in.ends);
  AllEnds<D> all{list.data(), static_cast<int64_t>(list.size())};
  int64_t me = *in.ends.rank, last = segments.groups - 1;
  int64_t leading = Count{in.head, last >= 0 ? segments.begin(0) : in.grouped.rows()}();
  Ends<D> ends = all.ends[me];
  auto pass = static_cast<SumPass>(*in.pass);
  parallel.blocks(2, 1, [&](int64_t from, int64_t to) {
    for (int64_t end = from; end < to; ++end) {
      if (end == 0 && leading > 0) add_part(particles, pass, 0, leading, all.head_group(me), ends.head);
      if (end == 1 && last >= 0)
        add_part(particles, pass, segments.begin(last), segments.end(last), all.tail_group(me), ends.tail);
    }
  });
  std::memcpy(in.found, &ends, sizeof(ends));
}

template <int D, typename T>
void catalogue(const Parallel& parallel, const Catalogue<D, T>& in) {
  GroupParticles<D, T> particles = read_particles(in.grouped);
  Segments segments(in.grouped);
  std::vector<Ends<D>> list = read_ends(in.ends);
  auto write = [&](int64_t g, const Moments<D>& sums) {
    in.columns.write(g, sums, particles.period, particles.vel != nullptr);
  };
  in.each_column([](T* column, int64_t elements) { std::fill_n(column, elements, T{0}); });
  std::copy_n(segments.count, in.room, in.count);
  int64_t complete_groups = list.empty() ? segments.groups : std::max<int64_t>(0, segments.groups - 1);
  parallel.blocks(complete_groups, 16, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      Moments<D> sums{};
      for (SumPass pass : {SumPass::masses, SumPass::centres, SumPass::spreads})
        add_part(particles, pass, segments.begin(g), segments.end(g), sums, sums);
      write(g, sums);
    }
  });
  if (complete_groups == segments.groups) return;
  Moments<D> tail = AllEnds<D>{list.data(), static_cast<int64_t>(list.size())}.tail_group(*in.ends.rank);
  write(complete_groups, tail);
  in.count[complete_groups] = static_cast<int32_t>(tail.count);
}

}  // namespace

JZTREE_KERNEL(straddling_sums, StraddlingSums);
JZTREE_KERNEL(catalogue, Catalogue);

}  // namespace jztree
