// A warp takes 32 rows: each lane computes the potential of one row, and all lanes use the same nodes and rows. A warp
// computes exact sums for one particle after the other, in the CPU's order.
//
// Work arrays: 60 bytes per row in 3D, mostly float64 places relative to the group's first particle. Not tuned on a GPU
// yet.

#include <cstdint>
#include <limits>

#include "common/cuda/context.cuh"
#include "common/cuda/warp.cuh"
#include "groups/moments.cuh"
#include "lowest_potential.h"
#include "potential_bounds.h"

namespace jztree {
namespace {

using Word = unsigned long long;  // non-negative numbers sort like their bits

__device__ inline Word word_of(double number) { return static_cast<Word>(__double_as_longlong(number)); }
__device__ inline double number_of(Word word) { return __longlong_as_double(static_cast<long long>(word)); }

template <int D, typename T>
struct PotentialProblem {
  GroupParticles<D, T> particles;
  Lengths box, softening;
  Count groups;
  const int32_t *count, *offset;
  int64_t rows;
  NodeLevels levels;
  int32_t* group;          // (n,), -1 for rows in no group
  double *place, *weight;  // (n, D), (n,)
  double* most;            // (n,): upper limit of the potential; at the end its exact value, or -1 if not computed
  PotentialNode<D>* nodes;
  Word* least;    // (steps + 1, capacity): lower limit of the largest potential after each step
  Word* best;     // (capacity,): the largest potential
  uint32_t* row;  // (capacity,): of the particle with this potential

  __device__ int64_t inside(int64_t at) const { return at < 0 ? 0 : at < rows ? at : rows; }
  __device__ int64_t begin(int64_t g) const { return inside(offset[g]); }
  __device__ int64_t end(int64_t g) const { return inside(static_cast<int64_t>(offset[g]) + count[g]); }
  __device__ int64_t size(int64_t g) const { return end(g) - begin(g); }
  __device__ double softening2() const { return softening[0] * softening[0]; }
};

template <int D, typename T>
__global__ void take_places(const __grid_constant__ PotentialProblem<D, T> in) {
  int64_t g = thread_index() / warp_size;
  if (g >= in.groups()) return;
  GroupParticles<D, T> particles = in_box(in.particles, in.box);
  double first[D];
  if (in.begin(g) < in.end(g)) particles.place_of(in.begin(g), first);
  for (int64_t row = in.begin(g) + lane_index(); row < in.end(g); row += warp_size) {
    in.group[row] = static_cast<int32_t>(g);
    particles.offset(row, first, in.place + row * D);
    in.weight[row] = particles.mass_of(row);
  }
}

// One warp per node; a node is used if it is wholly in a single group that is large enough.
template <int D, typename T>
__global__ void build_nodes(const __grid_constant__ PotentialProblem<D, T> in) {
  int64_t number = thread_index() / warp_size;
  if (number >= in.levels.starts[in.levels.count]) return;
  int level = 0;
  while (number >= in.levels.starts[level + 1]) ++level;
  int64_t first = (number - in.levels.starts[level]) * in.levels.size[level], last = first + in.levels.size[level];
  int32_t g = in.group[first];
  if (g < 0 || in.group[last - 1] != g || in.size(g) <= alone) return;  // the same in all lanes
  PotentialNode<D> node{};
  for (int64_t row = first + lane_index(); row < last; row += warp_size) {
    node.mass += in.weight[row];
    for (int d = 0; d < D; ++d) node.centre[d] += in.weight[row] * in.place[row * D + d];
  }
  node.mass = warp_sum(node.mass);
  for (int d = 0; d < D; ++d) node.centre[d] = warp_sum(node.centre[d]) / (node.mass > 0 ? node.mass : 1);
  for (int64_t row = first + lane_index(); row < last; row += warp_size) node.add(in.place + row * D, in.weight[row]);
  for (double& spread : node.spread) spread = warp_sum(spread);
  node.third = warp_sum(node.third);
  node.reach = warp_max(node.reach);
  if (lane_index() == 0) in.nodes[number] = node;
}

// Whether a potential may be the largest, given the limits after some steps. The margin is far above the rounding
// errors.
template <int D, typename T>
__device__ bool may_be_largest(const PotentialProblem<D, T>& in, int step, int64_t g, int64_t row) {
  return in.most[row] * (1 + 1e-9) >= number_of(in.least[step * in.groups.rows + g]);
}

// Bound the potentials of some of a block's rows, which are in one group; the other lanes idle.
template <int D, typename T>
__device__ void bound(const PotentialProblem<D, T>& in, int step, int64_t g, int64_t row, bool mine) {
  double place[D] = {}, lower[D], upper[D], potential = 0, of_masses = 0, softening2 = in.softening2();
  double tolerance = tolerance_of(step);
  constexpr double far = std::numeric_limits<double>::infinity();
  for (int d = 0; d < D; ++d) {
    if (mine) place[d] = in.place[row * D + d];
    lower[d] = warp_min(mine ? place[d] : far);
    upper[d] = warp_max(mine ? place[d] : -far);
  }
  visit_group<D>(
      in.levels, in.nodes, in.begin(g), in.end(g), row - lane_index(), row - lane_index() + warp_size, lower, upper,
      softening2, tolerance,
      [&](const PotentialNode<D>& node) { node.add_to(place, softening2, &potential, &of_masses); },
      [&](int64_t from, int64_t to) {
        for (int64_t source = from; source < to; ++source) {
          double term = pair_potential<D>(place, in.place + source * D, in.weight[source], softening2);
          if (source != row) potential += term;
        }
      });
  double least = warp_max(mine ? potential - tolerance * of_masses : 0.);
  if (mine) in.most[row] = potential + tolerance * of_masses;
  if (lane_index() == 0 && least > 0) atomicMax(in.least + (step + 1) * in.groups.rows + g, word_of(least));
}

// Call visit(group, whether this lane's row is in it) for each group with rows in a block of 32.
template <int D, typename T, typename Visit>
__device__ void each_group_in(const PotentialProblem<D, T>& in, int64_t row, const Visit& visit) {
  int32_t group = row < in.rows ? in.group[row] : -1;
  for (unsigned left = __ballot_sync(all_lanes, group >= 0); left != 0;) {
    int32_t g = __shfl_sync(all_lanes, group, __ffs(static_cast<int>(left)) - 1);
    visit(g, group == g);
    left &= ~__ballot_sync(all_lanes, group == g);
  }
}

template <int D, typename T>
__global__ void bound_potentials(const __grid_constant__ PotentialProblem<D, T> in, int step) {
  int64_t row = thread_index();
  if (row - lane_index() >= in.rows) return;
  each_group_in(in, row, [&](int32_t g, bool mine) {
    if (mine && step == 0) in.most[row] = std::numeric_limits<double>::infinity();
    bool may_be_lowest = mine && may_be_largest(in, step, g, row);
    if (in.size(g) > alone && __any_sync(all_lanes, may_be_lowest)) bound(in, step, g, row, may_be_lowest);
  });
}

// The first of several identical particles represents them.
template <int D, typename T>
__device__ bool like_the_row_before(const PotentialProblem<D, T>& in, int64_t g, int64_t row) {
  bool alike = row > in.begin(g) && in.weight[row] == in.weight[row - 1];
  for (int d = 0; alike && d < D; ++d) alike = in.place[row * D + d] == in.place[(row - 1) * D + d];
  return alike;
}

template <int D, typename T>
__global__ void sum_potentials(const __grid_constant__ PotentialProblem<D, T> in) {
  int64_t row = thread_index();
  if (row - lane_index() >= in.rows) return;
  double softening2 = in.softening2();
  each_group_in(in, row, [&](int32_t g, bool mine) {
    bool wanted = mine && may_be_largest(in, steps, g, row) && !like_the_row_before(in, g, row);
    double own = -1;
    for (unsigned left = __ballot_sync(all_lanes, wanted); left != 0; left &= left - 1) {
      int lane = __ffs(static_cast<int>(left)) - 1;
      int64_t candidate = row - lane_index() + lane;
      double sum = 0;
      for (int64_t source = in.begin(g) + lane_index(); source < in.end(g); source += warp_size) {
        double term = pair_potential<D>(in.place + candidate * D, in.place + source * D, in.weight[source], softening2);
        sum += source == candidate ? 0. : term;
      }
      sum = warp_sum(sum);
      if (lane == lane_index()) own = sum;
    }
    double largest = warp_max(wanted ? own : 0.);
    if (mine) in.most[row] = own;
    if (lane_index() == 0) atomicMax(in.best + g, word_of(largest));
  });
}

template <int D, typename T>
__global__ void pick_rows(const __grid_constant__ PotentialProblem<D, T> in) {
  int64_t row = thread_index();
  if (row >= in.rows || in.group[row] < 0) return;
  int32_t g = in.group[row];
  if (in.most[row] >= 0 && word_of(in.most[row]) == in.best[g]) atomicMin(in.row + g, static_cast<uint32_t>(row));
}

template <typename T>
__global__ void write_groups(Count groups, const uint32_t* lowest_row, const Word* best, int32_t* row, T* potential) {
  int64_t g = thread_index();
  if (g >= groups.rows) return;
  bool held = g < groups() && lowest_row[g] != ~uint32_t{0};
  row[g] = held ? static_cast<int32_t>(lowest_row[g]) : -1;
  potential[g] = held ? static_cast<T>(-number_of(best[g])) : T{0};
}

template <int D, typename T>
void lowest_potential(Queue& queue, const LowestPotential<D, T>& in) {
  const GroupedParticles<D, T>& grouped = in.grouped;
  int64_t rows = grouped.rows(), room = grouped.room();
  NodeLevels levels(rows);
  PotentialProblem<D, T> problem{grouped.particles(),
                                 grouped.box,
                                 in.softening,
                                 grouped.groups(),
                                 grouped.count,
                                 grouped.offset,
                                 rows,
                                 levels,
                                 queue.scratch<int32_t>(rows),
                                 queue.scratch<double>(rows * D),
                                 queue.scratch<double>(rows),
                                 queue.scratch<double>(rows),
                                 queue.scratch<PotentialNode<D>>(levels.nodes()),
                                 queue.scratch<Word>((steps + 1) * room),
                                 queue.scratch<Word>(room),
                                 queue.scratch<uint32_t>(room)};
  queue.fill_bytes(problem.group, 0xff, rows);
  queue.fill_bytes(problem.least, 0, (steps + 1) * room);
  queue.fill_bytes(problem.best, 0, room);
  queue.fill_bytes(problem.row, 0xff, room);
  queue.launch_warps(room, take_places<D, T>, problem);
  queue.launch_warps(levels.nodes(), build_nodes<D, T>, problem);
  for (int step = 0; step < steps; ++step) queue.launch_over(rows, bound_potentials<D, T>, problem, step);
  queue.launch_over(rows, sum_potentials<D, T>, problem);
  queue.launch_over(rows, pick_rows<D, T>, problem);
  queue.launch_over(room, write_groups<T>, grouped.groups(), problem.row, problem.best, in.row, in.potential);
}

}  // namespace

JZTREE_KERNEL(lowest_potential, LowestPotential);

}  // namespace jztree
