// Writes neighbours and their distances, which are computed in float64 from the given positions
// (common/distance_rule.h) and rounded once. Searches compare in the precision of the positions, so neighbours whose
// distances differ by a rounding error may have to change places.
#pragma once

#include <cstdint>

#include "common/cuda/queue.cuh"
#include "common/cuda/warp.cuh"
#include "common/distance_rule.h"
#include "knn_problem.cuh"

namespace jztree {

// The neighbours of one query.
template <int W, typename From>
class Report {
 public:
  __device__ Report(const Problem<From>& problem, const DistanceRule<W, From>& rule, int64_t query)
      : problem_(problem), rule_(rule), query_(query), first_(problem.out_row(query) * problem.k) {
    const int64_t self_row = query_ < problem_.queries.num() ? problem_.own_row(query_) : -1;
    // The query itself stays the first.
    begin_ = problem_.own_first(self_row) ? 1 : 0;
  }

  // The row of the i-th neighbour, or -1; and its squared distance.
  __device__ int32_t place(int64_t i) const { return problem_.index[first_ + i]; }
  __device__ double square_of(int32_t source) const { return source < 0 ? 0. : square(source); }

  __device__ void write_radius(int64_t i, int32_t source, double distance2) const {
    problem_.radius[first_ + i] = source < 0 ? std::numeric_limits<From>::infinity() : rule_.length(distance2);
  }
  __device__ void write_source_row(int64_t i) const {
    if (place(i) >= 0) problem_.index[first_ + i] = problem_.source_rows[place(i)];
  }

  // Whether the i-th neighbour must come before the one before it, whose squared distance and row are `last`,
  // `last_row`.
  __device__ bool is_misplaced(int64_t i, int32_t source, double distance2, int32_t last_row, double last) const {
    return i > begin_ && source >= 0 && is_before(distance2, source, last, last_row);
  }

  // Sort all neighbours. Searches compare in the precision of the positions, so few neighbours change places.
  __device__ void sort() const {
    double last = 0;
    for (int64_t i = 0; i < problem_.k && place(i) >= 0; ++i) {
      const double distance2 = square(place(i));
      if (i > begin_ && is_before(distance2, place(i), last, place(i - 1))) {
        move_down(i, distance2);
      } else {
        last = distance2;
      }
    }
  }

 private:
  __device__ double square(int64_t source) const {
    const int dims = problem_.sources.dims;
    double sum = 0;
    for (int d = 0; d < dims; ++d) {
      double displacement =
          rule_.displacement(problem_.queries.pos[query_ * dims + d], problem_.sources.pos[source * dims + d], d);
      sum += displacement * rule_.factor * (displacement * rule_.factor);
    }
    return sum;
  }

  __device__ static bool is_before(double square, int32_t row, double other_square, int32_t other_row) {
    return square < other_square || (square == other_square && row < other_row);
  }

  // Insert the i-th neighbour among those before it. This is rare, so squares are computed again.
  __device__ void move_down(int64_t i, double distance2) const {
    const int32_t row = place(i);
    for (; i > begin_; --i) {
      const double before = square(place(i - 1));
      if (!is_before(distance2, row, before, place(i - 1))) break;
      problem_.index[first_ + i] = place(i - 1);
      problem_.radius[first_ + i] = rule_.length(before);
    }
    problem_.index[first_ + i] = row;
    problem_.radius[first_ + i] = rule_.length(distance2);
  }

  const Problem<From>& problem_;
  const DistanceRule<W, From>& rule_;
  const int64_t query_, first_;
  int64_t begin_;
};

// A warp processes the neighbours of 32 queries, one per lane at a time, so that lanes access consecutive words.
template <int W, typename From>
class WarpReport {
 public:
  __device__ WarpReport(const Problem<From>& problem, const DistanceRule<W, From>& rule, int64_t group)
      : problem_(problem), rule_(rule), first_(group * warp_size), k_(static_cast<int>(problem.k)) {
    const int64_t remaining = problem.count() - first_;
    queries_ = static_cast<int>(remaining < warp_size ? remaining : warp_size);
  }

  __device__ void write() const {
    uint32_t misplaced = write_radii();
    __syncwarp();
    if (misplaced >> lane_index() & 1) query(lane_index()).sort();
    __syncwarp();
    if (!problem_.source_rows) return;
    for_each([&](int q, int i) {
      if (q < queries_) query(q).write_source_row(i);
    });
  }

 private:
  __device__ Report<W, From> query(int q) const { return {problem_, rule_, problem_.query(first_ + q)}; }

  // Call body(query, neighbour) for all neighbours of 32 queries. All lanes call it equally often.
  template <typename Body>
  __device__ void for_each(const Body& body) const {
    const int more_queries = warp_size / k_, more = warp_size % k_;
    int q = lane_index() / k_, i = lane_index() % k_;
    for (int step = 0; step < k_; ++step) {
      body(q, i);
      q += more_queries;
      i += more;
      if (i < k_) continue;
      i -= k_;
      ++q;
    }
  }

  // Returns the queries whose neighbours must be sorted, one bit each.
  __device__ uint32_t write_radii() const {
    uint32_t misplaced = 0;
    // Of the last lane in the step before: the neighbour before that of the first lane.
    double carried = 0;
    int32_t carried_row = -1;
    for_each([&](int q, int i) {
      const bool takes_part = q < queries_;
      const Report<W, From> report = query(takes_part ? q : 0);
      const int32_t source = takes_part ? report.place(i) : -1;
      const double distance2 = report.square_of(source);
      double last = __shfl_up_sync(all_lanes, distance2, 1);
      int32_t last_row = __shfl_up_sync(all_lanes, source, 1);
      if (lane_index() == 0) {
        last = carried;
        last_row = carried_row;
      }
      carried = __shfl_sync(all_lanes, distance2, warp_size - 1);
      carried_row = __shfl_sync(all_lanes, source, warp_size - 1);
      if (!takes_part) return;
      report.write_radius(i, source, distance2);
      if (report.is_misplaced(i, source, distance2, last_row, last)) misplaced |= 1u << q;
    });
    return warp_reduce(misplaced, [](uint32_t a, uint32_t b) { return a | b; });
  }

  const Problem<From>& problem_;
  const DistanceRule<W, From>& rule_;
  const int64_t first_;
  const int k_;
  int queries_;
};

template <int W, typename From>
__global__ void report(const __grid_constant__ Problem<From> problem, const Scale<W, From>* scale) {
  const int64_t group = thread_index() / warp_size;
  if (group * warp_size >= problem.count()) return;
  const DistanceRule<W, From> rule(false, false, *scale);
  WarpReport<W, From>(problem, rule, group).write();
}

}  // namespace jztree
