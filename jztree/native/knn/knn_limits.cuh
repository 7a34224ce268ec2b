// Search limits of queries: only sources within a query's radius are neighbours, by the rule that links friends
// (common/distance_rule.h). Candidates that the precision of the search cannot decide are decided in float64, from the
// unchanged input positions, before a list takes them.
#pragma once

#include <cstdint>

#include "common/distance_rule.h"
#include "knn_problem.cuh"

namespace jztree {

// each: null without limits.
template <int W, typename T>
struct Limits {
  const DistanceRule<W, T>* rule = nullptr;
  const Within<T>* each = nullptr;
  int64_t count = 0;

  // The limit of the query in an output row; null: no limit.
  __device__ const Within<T>* of(int64_t row) const { return each ? each + (count > 1 ? row : 0) : nullptr; }
};

template <typename From, int W, typename T>
__global__ void make_limits(Lengths given, const Scale<W, T>* scale, DistanceRule<W, T>* rule, Within<T>* each) {
  int64_t i = thread_index();
  if (i >= given.count) return;
  // Positions may have been wrapped, and scaled down to 0: bounds that allow for it cost little.
  const DistanceRule<W, T> own = rule_of_wrapped<From>(DistanceRule<W, T>(scale->periodic, false, *scale));
  if (i == 0) *rule = own;
  double radius = given[i];
  each[i] = radius >= 0 ? own.within(radius) : Within<T>{};
}

template <typename From, int W, typename T>
Limits<W, T> limits_on_device(Queue& queue, const Lengths& given, const Scale<W, T>* scale) {
  if (given.count == 0) return {};
  auto* rule = queue.scratch<DistanceRule<W, T>>(1);
  auto* limits = queue.scratch<Within<T>>(given.count);
  queue.launch_over(given.count, make_limits<From, W, T>, given, scale, rule, limits);
  return {rule, limits, given.count};
}

// The bound of a list with this last candidate.
template <typename T>
__device__ __forceinline__ Candidate<T> bounded(const Candidate<T>& last, const Within<T>* limit) {
  if (limit == nullptr) return last;
  Candidate<T> farthest = Candidate<T>::make(limit->possibly2, no_row - 1);
  return choose(farthest < last, farthest, last);
}

// Whether a source at this squared distance is surely not a neighbour.
template <int W, typename From, typename T>
JZTREE_APART bool is_beyond(const Problem<From>& problem, const Limits<W, T>& limits, const Within<T>& limit,
                            T distance2, int64_t query, uint32_t source) {
  if (distance2 < limit.surely2) return false;
  const int dims = problem.sources.dims;
  const From *a = problem.queries.pos + query * dims, *b = problem.sources.pos + static_cast<int64_t>(source) * dims;
  return !limit.exact.reaches(
      dims, [&](int d) { return limits.rule->displacement(static_cast<T>(a[d]), static_cast<T>(b[d]), d); });
}

}  // namespace jztree
