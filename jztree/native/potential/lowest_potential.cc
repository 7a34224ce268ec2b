// Blocks of 32 rows are processed together, so that loops over their particles are vectorised.

#include "lowest_potential.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/cpu/context.h"
#include "potential_bounds.h"

namespace jztree {
namespace {

template <int D, typename T>
class Potentials {
 public:
  Potentials(const Parallel& parallel, const LowestPotential<D, T>& in)
      : parallel_(parallel),
        in_(in),
        particles_(in.grouped.particles()),
        levels_(in.grouped.rows()),
        softening2_(in.softening[0] * in.softening[0]),
        group_(static_cast<size_t>(in.grouped.rows()), -1),
        place_(static_cast<size_t>(in.grouped.rows() * D)),
        weight_(static_cast<size_t>(in.grouped.rows())),
        most_(static_cast<size_t>(in.grouped.rows()), std::numeric_limits<double>::infinity()),
        least_(static_cast<size_t>(in.grouped.rows())),
        nodes_(static_cast<size_t>(levels_.nodes())) {
    in.grouped.box.read(particles_.period);
  }

  void find() {
    int64_t groups = in_.grouped.groups()();
    best_.assign(at(groups), 0);
    parallel_.blocks(groups, 16, [&](int64_t from, int64_t to) {
      for (int64_t g = from; g < to; ++g) take_places(g);
    });
    parallel_.blocks(levels_.nodes(), 64, [&](int64_t from, int64_t to) {
      for (int64_t node = from; node < to; ++node) build(node);
    });
    for (int step = 0; step < steps; ++step) {
      each_run(4, [&](int64_t g, int64_t first, int64_t last) {
        if (size(g) > alone) bound(g, first, last, tolerance_of(step));
      });
      parallel_.blocks(groups, 16, [&](int64_t from, int64_t to) {
        for (int64_t g = from; g < to; ++g)
          for (int64_t row = begin(g); row < end(g); ++row) best_[at(g)] = std::max(best_[at(g)], least_[at(row)]);
      });
    }
    each_run(1, [&](int64_t g, int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row)
        most_[at(row)] = may_be_largest(g, row) && !like_the_row_before(g, row) ? sum(g, row) : -1;
    });
    std::fill_n(in_.row, in_.grouped.room(), -1);
    std::fill_n(in_.potential, in_.grouped.room(), T{0});
    for (int64_t g = 0; g < groups; ++g) write(g);
  }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  int64_t inside(int64_t row) const { return std::clamp<int64_t>(row, 0, in_.grouped.rows()); }
  int64_t begin(int64_t g) const { return inside(in_.grouped.offset[g]); }
  int64_t end(int64_t g) const { return inside(static_cast<int64_t>(in_.grouped.offset[g]) + in_.grouped.count[g]); }
  int64_t size(int64_t g) const { return end(g) - begin(g); }

  void take_places(int64_t g) {
    double first[D];
    if (begin(g) < end(g)) particles_.place_of(begin(g), first);
    for (int64_t row = begin(g); row < end(g); ++row) {
      group_[at(row)] = static_cast<int32_t>(g);
      particles_.offset(row, first, &place_[at(row * D)]);
      weight_[at(row)] = particles_.mass_of(row);
    }
  }

  // Build a node, if it is wholly in a single group that is large enough.
  void build(int64_t number) {
    int level = 0;
    while (number >= levels_.starts[level + 1]) ++level;
    int64_t first = (number - levels_.starts[level]) * levels_.size[level], last = first + levels_.size[level];
    int32_t g = group_[at(first)];
    if (g < 0 || group_[at(last - 1)] != g || size(g) <= alone) return;
    PotentialNode<D> node{};
    for (int64_t row = first; row < last; ++row) {
      node.mass += weight_[at(row)];
      for (int d = 0; d < D; ++d) node.centre[d] += weight_[at(row)] * place_[at(row * D + d)];
    }
    for (int d = 0; d < D; ++d) node.centre[d] /= node.mass > 0 ? node.mass : 1;
    for (int64_t row = first; row < last; ++row) node.add(&place_[at(row * D)], weight_[at(row)]);
    nodes_[at(number)] = node;
  }

  // Call visit(group, first row, end) for the rows of a group in each block of 32. grain: number of blocks per task.
  template <typename Visit>
  void each_run(int64_t grain, const Visit& visit) const {
    parallel_.blocks((in_.grouped.rows() + block_rows - 1) / block_rows, grain, [&](int64_t from, int64_t to) {
      for (int64_t block = from; block < to; ++block) {
        int64_t row = block * block_rows, last = std::min(row + block_rows, in_.grouped.rows());
        while (row < last) {
          int64_t g = group_[at(row)], first = row;
          while (row < last && group_[at(row)] == g) ++row;
          if (g >= 0) visit(g, first, row);
        }
      }
    });
  }

  // Particles whose potentials are bounded together.
  struct Targets {
    int count = 0, place[block_rows];  // place: index of each row of the block among the targets, or -1
    int64_t first = 0, rows[block_rows];
    double x[D][block_rows] = {}, potential[block_rows] = {}, of_masses[block_rows] = {}, lower[D], upper[D];
  };

  // Bound the potential of each particle of a group that may still have the largest potential.
  void bound(int64_t g, int64_t first, int64_t last, double tolerance) {
    Targets targets;
    targets.first = first;
    std::fill_n(targets.place, block_rows, -1);
    for (int64_t row = first; row < last; ++row) {
      if (!may_be_largest(g, row)) continue;
      targets.place[row - first] = targets.count;
      for (int d = 0; d < D; ++d) targets.x[d][targets.count] = place_[at(row * D + d)];
      targets.rows[targets.count++] = row;
    }
    if (targets.count == 0) return;
    for (int d = 0; d < D; ++d) {
      targets.lower[d] = *std::min_element(targets.x[d], targets.x[d] + targets.count);
      targets.upper[d] = *std::max_element(targets.x[d], targets.x[d] + targets.count);
    }
    visit_group<D>(
        levels_, nodes_.data(), begin(g), end(g), first, last, targets.lower, targets.upper, softening2_, tolerance,
        [&](const PotentialNode<D>& node) { add_node(node, targets); },
        [&](int64_t from, int64_t to) {
          for (int64_t row = from; row < to; ++row) add_particle(row, targets);
        });
    for (int i = 0; i < targets.count; ++i) {
      most_[at(targets.rows[i])] = targets.potential[i] + tolerance * targets.of_masses[i];
      least_[at(targets.rows[i])] = targets.potential[i] - tolerance * targets.of_masses[i];
    }
  }

  // `PotentialNode::add_to` for all at once: each loop over particles is vectorised.
  void add_node(const PotentialNode<D> node, Targets& targets) const {
    double away[D][block_rows], rho2[block_rows], along[block_rows] = {}, trace = 0;
    std::fill_n(rho2, block_rows, softening2_);
    for (int d = 0; d < D; ++d)
      for (int i = 0; i < block_rows; ++i) {
        away[d][i] = targets.x[d][i] - node.centre[d];
        rho2[i] += away[d][i] * away[d][i];
      }
    Pairs<D>::visit_with_self([&](int pair, int j, int k) {
      double weight = (j == k ? 1 : 2) * node.spread[pair];
      trace += j == k ? node.spread[pair] : 0;
      for (int i = 0; i < block_rows; ++i) along[i] += weight * away[j][i] * away[k][i];
    });
    for (int i = 0; i < block_rows; ++i) {
      double inverse = 1 / std::sqrt(rho2[i]), inverse2 = inverse * inverse;
      targets.potential[i] += node.mass * inverse + (3 * along[i] * inverse2 - trace) * inverse2 * inverse / 2;
      targets.of_masses[i] += node.mass * inverse;
    }
  }

  // Add the term of a particle to the potential of each target.
  void add_particle(int64_t row, Targets& targets) const {
    double other[D], w = weight_[at(row)], softening2 = softening2_;
    for (int d = 0; d < D; ++d) other[d] = place_[at(row * D + d)];
    int64_t away = row - targets.first;
    int own = away >= 0 && away < block_rows ? targets.place[away] : -1;
    double kept = own >= 0 ? targets.potential[own] : 0;
    for (int i = 0; i < block_rows; ++i) {
      double rho2 = softening2;
      for (int d = 0; d < D; ++d) rho2 += (targets.x[d][i] - other[d]) * (targets.x[d][i] - other[d]);
      targets.potential[i] += rho2 > 0 ? w / std::sqrt(rho2) : 0;
    }
    if (own >= 0) targets.potential[own] = kept;
  }

  // The margin is far above the rounding errors.
  bool may_be_largest(int64_t g, int64_t row) const { return most_[at(row)] * (1 + 1e-9) >= best_[at(g)]; }

  // The first of several identical particles represents them.
  bool like_the_row_before(int64_t g, int64_t row) const {
    bool alike = row > begin(g) && weight_[at(row)] == weight_[at(row - 1)];
    for (int d = 0; alike && d < D; ++d) alike = place_[at(row * D + d)] == place_[at((row - 1) * D + d)];
    return alike;
  }

  double sum(int64_t g, int64_t row) const {
    double sums[block_rows] = {};
    double own[D], softening2 = softening2_;
    for (int d = 0; d < D; ++d) own[d] = place_[at(row * D + d)];
    int64_t first = begin(g), last = end(g);
    auto term = [&](int64_t other) {
      double found = pair_potential<D>(own, &place_[at(other * D)], weight_[at(other)], softening2);
      return other == row ? 0. : found;
    };
    int64_t other = first;
    for (; other + block_rows <= last; other += block_rows)
      for (int i = 0; i < block_rows; ++i) sums[i] += term(other + i);
    for (int i = 0; other < last; ++other, ++i) sums[i] += term(other);
    for (int half = block_rows / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    return sums[0];
  }

  void write(int64_t g) const {
    if (begin(g) == end(g)) return;
    const double *first = &most_[at(begin(g))], *best = std::max_element(first, first + size(g));
    in_.row[g] = static_cast<int32_t>(begin(g) + (best - first));
    in_.potential[g] = static_cast<T>(-*best);
  }

  const Parallel& parallel_;
  const LowestPotential<D, T>& in_;
  GroupParticles<D, T> particles_;
  NodeLevels levels_;
  double softening2_;
  std::vector<int32_t> group_;  // of each row, -1 for none
  std::vector<double> place_, weight_;
  std::vector<double> most_, least_;  // limits of each potential; at the end, its value
  std::vector<double> best_;          // for each group, a lower limit of the largest potential
  std::vector<PotentialNode<D>> nodes_;
};

template <int D, typename T>
void lowest_potential(const Parallel& parallel, const LowestPotential<D, T>& in) {
  Potentials<D, T>(parallel, in).find();
}

}  // namespace

JZTREE_KERNEL(lowest_potential, LowestPotential);

}  // namespace jztree
