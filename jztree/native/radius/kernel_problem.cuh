// What all warps that sum over kernels look at: both sets of particles, their smoothing lengths, and values.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/cuda/boxes.cuh"
#include "common/cuda/loads.cuh"
#include "common/cuda/share.cuh"
#include "common/cuda/tree.cuh"
#include "common/cuda/wrapped.cuh"
#include "kernel_rule.h"
#include "node_values.cuh"

namespace jztree {

// T: what distances and kernels are computed in. From: the dtype of the positions.
template <int D, typename T>
struct KernelSetup : BoxSetup<D, T> {
  DistanceRule<D, T> rule;
  KernelProfile<T> profile;
  RadialSum<T> radial;

  template <typename From>
  __device__ KernelSetup(const Lengths& box, const DeviceTree<D, From>& sources, const DeviceTree<D, From>& queries,
                         const int32_t* any_wrapped, int64_t shape, const Lengths& numbers, int order, int by_h)
      : BoxSetup<D, T>(box, sources, queries, any_wrapped),
        rule(rule_of_wrapped<From>(DistanceRule<D, T>(this->wrapped, false, this->scale))),
        profile(shape, numbers),
        radial(D, order, by_h) {}
};

// The parts that do not depend on what distances are computed in.
template <int D, typename From>
struct KernelSets {
  DeviceTree<D, From> sources, queries;
  KernelForm form;
  const double* node_h;  // the largest of the lengths of the sources in each node; null: they do not count
  const double* value;   // (n, columns * inner), of sources
  int64_t columns;
  int inner, outer;       // components of a column of values, and of sums
  int inward, powers;     // as in kernel_sums.h
  int sum_powers;         // likewise
  bool images;            // likewise
  Buffer sum;             // (q, columns * outer)
  const int32_t* narrow;  // not 0: distances are computed in From; 0: in float64
  int64_t first_column;   // those at work
  int at_work;

  // Sums of a query that are taken at a time.
  JZTREE_BOTH int sums() const { return at_work * outer; }
};

template <int D, typename T, typename From>
struct KernelProblem : KernelSets<D, From> {
  using Setup = KernelSetup<D, T>;

  KernelLengths<D, T> lengths;
  const Setup* setup;
};

struct LargestLength {
  using Joined = double;

  template <typename Parts>
  __device__ double operator()(const Parts& parts, int64_t begin, int64_t end) const {
    double most = 0;
    for (int64_t i = begin; i < end; ++i) most = larger<double>(most, parts[i]);
    return most;
  }
};

// narrow: becomes 0 if a length that counts is too small for T. Threads that find one all write the same.
template <typename Setup>
__global__ void look_for_small(Lengths lengths, Count num, const Setup* setup, int32_t* narrow) {
  int64_t row = thread_index();
  if (row >= lengths.count || (lengths.count > 1 && row >= num())) return;
  if (lengths[row] * static_cast<double>(setup->scale.factor) < least_narrow_length(setup->scale))
    store_relaxed(narrow, 0);
}

// The values of a row, in float64; those of scatter divided by the powers of the source's smoothing length.
template <typename Value>
__global__ void stage_values(const Value* given, Count num, int64_t each, RowLengths h, int powers, int shift,
                             double* value) {
  int64_t place = thread_index(), row = place / each;
  if (row >= num()) return;
  value[place] = over_powers(static_cast<double>(given[place]), h[row], powers, shift);
}

template <int D, typename T>
const double* staged_values(Queue& queue, const KernelSums<D, T>& in) {
  int64_t each = in.value.dims[1], count = in.value.elements();
  auto* value = queue.scratch<double>(count);
  RowLengths h{in.source_h};
  int powers = in.form == static_cast<int64_t>(KernelForm::scatter) ? in.powers() : 0;
  int shift = static_cast<int>(in.value_powers);
  if (in.value.type == XLA_FFI_DataType_F32) {
    queue.launch_over(count, stage_values<float>, static_cast<const float*>(in.value.data), in.sources.num, each, h,
                      powers, shift, value);
  } else {
    queue.launch_over(count, stage_values<double>, static_cast<const double*>(in.value.data), in.sources.num, each, h,
                      powers, shift, value);
  }
  return value;
}

// For distances in T.
template <typename T, int D, typename From>
KernelProblem<D, T, From> in_precision(Queue& queue, const KernelSums<D, From>& in, const KernelSets<D, From>& sets,
                                       const int32_t* wrapped) {
  auto* setup = make_setup<KernelSetup<D, T>>(queue, in.box, sets.sources, sets.queries, wrapped, in.shape, in.profile,
                                              static_cast<int>(in.order()), static_cast<int>(in.by_h));
  return {sets, KernelLengths<D, T>(in), setup};
}

// No columns are at work yet, and nobody has looked for small lengths.
template <int D, typename From>
KernelSets<D, From> sets_of(Queue& queue, const KernelSums<D, From>& in) {
  KernelSets<D, From> sets{};
  sets.sources = on_device(in.sources);
  sets.queries = on_device(in.queries);
  sets.form = static_cast<KernelForm>(in.form);
  if (sets.form != KernelForm::gather)
    sets.node_h = join_nodes<LargestLength>(queue, in.sources, RowLengths{in.source_h});
  sets.value = staged_values(queue, in);
  sets.columns = in.columns();
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
