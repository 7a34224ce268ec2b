// Writes neighbours and their distances, which are computed in float64 from the given positions
// (common/distance_rule.h) and rounded once. Searches compare in the precision of the positions, so neighbours whose
// distances differ by a rounding error may have to change places.
#pragma once

#include <cstdint>

#include "common/cuda/queue.cuh"
#include "common/distance_rule.h"
#include "knn_problem.cuh"

namespace jztree {

// The neighbours of one query, processed by one thread.
template <int W, typename From>
class Report {
 public:
  __device__ Report(const Problem<From>& problem, const DistanceRule<W, From>& rule, int64_t query)
      : problem_(problem), rule_(rule), query_(query), first_(problem.out_row(query) * problem.k) {}

  __device__ void write() const {
    const int64_t own = query_ < problem_.queries.num() ? problem_.own_row(query_) : -1;
    // The query itself stays the first.
    const int64_t begin = problem_.own_first(own) ? 1 : 0;
    double last = 0;
    for (int64_t i = 0; i < problem_.k; ++i) {
      if (place(i) < 0) {
        problem_.radius[first_ + i] = std::numeric_limits<From>::infinity();
        continue;
      }
      const double mine = square(place(i));
      if (i > begin && is_before(mine, place(i), last, place(i - 1))) {
        move_down(i, begin, mine);
        continue;
      }
      problem_.radius[first_ + i] = rule_.length(mine);
      last = mine;
    }
    if (!problem_.source_rows) return;
    for (int64_t i = 0; i < problem_.k && place(i) >= 0; ++i)
      problem_.index[first_ + i] = problem_.source_rows[place(i)];
  }

 private:
  __device__ int32_t place(int64_t i) const { return problem_.index[first_ + i]; }

  __device__ double square(int64_t source) const {
    const int dims = problem_.sources.dims;
    double sum = 0;
    for (int d = 0; d < dims; ++d) {
      double apart = rule_.apart(problem_.queries.pos[query_ * dims + d], problem_.sources.pos[source * dims + d], d);
      sum += apart * rule_.factor * (apart * rule_.factor);
    }
    return sum;
  }

  __device__ static bool is_before(double square, int32_t row, double other_square, int32_t other_row) {
    return square < other_square || (square == other_square && row < other_row);
  }

  // Insert the i-th neighbour among those before it. This is rare, so squares are computed again.
  __device__ void move_down(int64_t i, int64_t begin, double mine) const {
    const int32_t row = place(i);
    for (; i > begin; --i) {
      const double before = square(place(i - 1));
      if (!is_before(mine, row, before, place(i - 1))) break;
      problem_.index[first_ + i] = place(i - 1);
      problem_.radius[first_ + i] = rule_.length(before);
    }
    problem_.index[first_ + i] = row;
    problem_.radius[first_ + i] = rule_.length(mine);
  }

  const Problem<From>& problem_;
  const DistanceRule<W, From>& rule_;
  const int64_t query_, first_;
};

template <int W, typename From>
__global__ void report(const __grid_constant__ Problem<From> problem, const Scale<W, From>* scale) {
  int64_t place = thread_index();
  if (place >= problem.count()) return;
  const DistanceRule<W, From> rule(false, false, *scale);
  Report<W, From>(problem, rule, problem.query(place)).write();
}

}  // namespace jztree
