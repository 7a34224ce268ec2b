// The data shared by all warps that compute kernel sums: both sets of particles, their smoothing lengths, and values.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "common/cuda/boxes.cuh"
#include "common/cuda/loads.cuh"
#include "common/cuda/share.cuh"
#include "common/cuda/tree.cuh"
#include "common/cuda/wrapped.cuh"
#include "kernel_rule.h"
#include "within/node_values.cuh"

namespace jztree {

// T: the type of distances and kernels. From: the dtype of the positions.
template <int D, typename T>
struct KernelSetup : BoxSetup<D, T> {
  DistanceRule<D, T> rule;
  KernelProfile<T> profile;
  RadialSum<T> radial;

  template <typename From>
  __device__ KernelSetup(const Lengths& box, const DeviceTree<D, From>& sources, const DeviceTree<D, From>& queries,
                         const int32_t* any_wrapped, int64_t shape, const Lengths& numbers, int dims, int order,
                         int by_h)
      : BoxSetup<D, T>(box, sources, queries, any_wrapped),
        rule(rule_of_wrapped<From>(DistanceRule<D, T>(this->wrapped, false, this->scale))),
        profile(shape, numbers),
        radial(dims, order, by_h) {}
};

// The parts that do not depend on the type of distances.
template <int D, typename From>
struct KernelSets {
  DeviceTree<D, From> sources, queries;
  KernelForm form;
  const double *node_h, *node_least_h;  // the largest and smallest length of a node's sources; null: they do not count
  const int32_t* node_kind;             // NodeKind of each node
  const double* node_sum;               // sums of the values of each node
  bool adds_nodes;                      // whether the kernel has the same value for all sources within reach
  const double* value;                  // (n, columns * inner), of sources
  int64_t columns;
  int dims;               // of the input positions
  int inner, outer;       // number of components in a column of values, and of sums
  int inward, powers;     // see kernel_sums.h
  int sum_powers;         // the same
  bool images;            // the same
  Buffer sum;             // (q, columns * outer)
  const int32_t* narrow;  // not 0: distances are computed in From; 0: in float64
  int64_t first_column;   // the current columns
  int at_work;

  // Number of sums of a query that are computed at a time.
  JZTREE_BOTH int sums() const { return at_work * outer; }
};

template <int D, typename T, typename From>
struct KernelProblem : KernelSets<D, From> {
  using Setup = KernelSetup<D, T>;

  KernelLengths<D, T> lengths;
  const Setup* setup;
};

// The way to add a node. `summed`: its sums are finite, so it may be added as a whole (see kernel_problem.h). `place`:
// its sources are also at one place with one smoothing length, so it may be added like one particle. `unknown`: pair by
// pair.
enum NodeKind : int32_t { unknown = 0, summed = 1, place = 2 };

// narrow: becomes 0 if a length that counts is too small for T. All threads that find one write the same value.
template <typename Setup>
__global__ void look_for_small(Lengths lengths, Count num, const Setup* setup, int32_t* narrow) {
  int64_t row = thread_index();
  if (row >= lengths.count || (lengths.count > 1 && row >= num())) return;
  if (lengths[row] * static_cast<double>(setup->scale.factor) < least_narrow_length(setup->scale))
    store_relaxed(narrow, 0);
}

// The values of a row, in float64; for scatter, divided by the powers of the source's smoothing length.
template <typename Value>
__global__ void stage_values(const Value* raw, Count num, int64_t columns, RowLengths h, int powers, int shift,
                             double* value) {
  int64_t place = thread_index(), row = place / columns;
  if (row >= num()) return;
  value[place] = over_powers(static_cast<double>(raw[place]), h[row], powers, shift);
}

// The sum of a column over a node. value: of rows.
struct AddValues {
  PlaneNodes nodes;
  const double* value;
  int64_t columns;
  double* sums;

  __device__ void operator()(int plane, int64_t item) const {
    const int64_t node = item / columns, column = item % columns, end = nodes.first_child(plane, node + 1);
    const double* parts = plane > 0 ? sums : value;
    double sum = 0;
    for (int64_t i = nodes.first_child(plane, node); i < end; ++i) sum += parts[i * columns + column];
    sums[nodes.place(plane, node) * columns + column] = sum;
  }
};

// The sums of every node, in the layout of the values.
template <int D, typename T>
const double* sum_nodes(Queue& queue, const Tree<D, T>& tree, const double* value, int64_t columns) {
  auto* sums = queue.scratch<double>(tree.layout.nodes() * columns);
  launch_planes(queue, tree.layout, 0, columns, AddValues{{tree.layout, tree.splits}, value, columns, sums});
  return sums;
}

// Whether two sources have the same kernel.
template <int D, typename From>
__device__ bool are_alike(const From* pos, const RowLengths& h, bool lengths_count, int64_t row, int64_t second) {
  for (int d = 0; d < D; ++d)
    if (pos[row * D + d] != pos[second * D + d]) return false;
  return !lengths_count || h[row] == h[second];
}

// Find the kind of a node.
template <int D, typename From>
struct FindKind {
  DeviceTree<D, From> tree;
  RowLengths h;
  bool lengths_count;
  const double* sums;
  int64_t columns;
  int32_t* kind;

  __device__ void operator()(int plane, int64_t item) const {
    const int64_t node = tree.starts[plane] + item;
    const int64_t first = tree.first_row(plane, node), end = tree.first_row(plane, node + 1);
    bool finite = first < end;
    for (int64_t c = 0; c < columns; ++c) finite &= std::isfinite(sums[node * columns + c]);
    bool is_place = finite;
    if (plane == 0) {
      for (int64_t row = first + 1; is_place && row < end; ++row)
        is_place = are_alike<D>(tree.pos, h, lengths_count, first, row);
    } else {
      for (int64_t child = tree.first_child(plane, node); is_place && child < tree.first_child(plane, node + 1);
           ++child) {
        const int64_t row = tree.first_row(plane - 1, child);
        if (row == tree.first_row(plane - 1, child + 1)) continue;
        is_place = kind[child] == NodeKind::place && are_alike<D>(tree.pos, h, lengths_count, first, row);
      }
    }
    kind[node] = is_place ? NodeKind::place : finite ? NodeKind::summed : NodeKind::unknown;
  }
};

template <int D, typename From>
const int32_t* kinds_of_nodes(Queue& queue, const KernelSums<D, From>& in, const DeviceTree<D, From>& sources,
                              const double* sums) {
  const TreeLayout& layout = in.sources.layout;
  const bool lengths_count = in.form != static_cast<int64_t>(KernelForm::gather);
  auto* kind = queue.scratch<int32_t>(layout.nodes());
  launch_planes(queue, layout, 0, 1,
                FindKind<D, From>{sources, RowLengths{in.source_h}, lengths_count, sums, in.value.dims[1], kind});
  return kind;
}

template <int D, typename T>
const double* staged_values(Queue& queue, const KernelSums<D, T>& in) {
  int64_t columns = in.value.dims[1], count = in.value.elements();
  auto* value = queue.scratch<double>(count);
  RowLengths h{in.source_h};
  int powers = in.form == static_cast<int64_t>(KernelForm::scatter) ? in.powers() : 0;
  int shift = static_cast<int>(in.value_powers);
  if (in.value.type == XLA_FFI_DataType_F32) {
    queue.launch_over(count, stage_values<float>, static_cast<const float*>(in.value.data), in.sources.num, columns, h,
                      powers, shift, value);
  } else {
    queue.launch_over(count, stage_values<double>, static_cast<const double*>(in.value.data), in.sources.num, columns,
                      h, powers, shift, value);
  }
  return value;
}

// For distances in T.
template <typename T, int D, typename From>
KernelProblem<D, T, From> in_precision(Queue& queue, const KernelSums<D, From>& in, const KernelSets<D, From>& sets,
                                       const int32_t* wrapped) {
  auto* setup = make_setup<KernelSetup<D, T>>(queue, in.box, sets.sources, sets.queries, wrapped, in.shape, in.profile,
                                              in.dims, static_cast<int>(in.order()), static_cast<int>(in.by_h));
  return {sets, KernelLengths<D, T>(in), setup};
}

// Does not set the current columns, and does not search for small lengths.
template <int D, typename From>
KernelSets<D, From> sets_of(Queue& queue, const KernelSums<D, From>& in) {
  KernelSets<D, From> sets{};
  sets.sources = on_device(in.sources);
  sets.queries = on_device(in.queries);
  sets.form = static_cast<KernelForm>(in.form);
  if (sets.form != KernelForm::gather) {
    sets.node_h = join_nodes<ExtremePart<double, true>>(queue, in.sources, RowLengths{in.source_h});
    sets.node_least_h = join_nodes<ExtremePart<double, false>>(queue, in.sources, RowLengths{in.source_h});
  }
  sets.value = staged_values(queue, in);
  sets.node_sum = sum_nodes(queue, in.sources, sets.value, in.value.dims[1]);
  sets.node_kind = kinds_of_nodes(queue, in, sets.sources, sets.node_sum);
  sets.adds_nodes = in.order() == 0 && in.shape == static_cast<int64_t>(KernelShape::top_hat);
  sets.columns = in.columns();
  sets.dims = in.dims;
  sets.inner = static_cast<int>(in.inner());
  sets.outer = static_cast<int>(in.outer());
  sets.inward = static_cast<int>(in.inward);
  sets.powers = in.powers();
  sets.sum_powers = static_cast<int>(in.sum_powers);
  sets.images = in.images;
  sets.sum = in.sum;
  return sets;
}

}  // namespace jztree
