// The walk of a warp through the hierarchy of the sources, for up to 32 queries, one per lane. It is repeated for each
// image of the box that may be within their radii: the queries are shifted by whole boxes, and space is open
// (image_rule.h).
#pragma once

#include <cstdint>
#include <limits>

#include "common/cuda/boxes.cuh"
#include "common/cuda/node_stack.cuh"
#include "common/cuda/share.cuh"
#include "common/cuda/tree.cuh"
#include "common/cuda/warp.cuh"
#include "image_rule.h"
#include "pairs_within.h"

namespace jztree {

template <int D, typename T>
struct ImageSetup {
  Scale<D, T> scale;
  DistanceRule<D, T> rule;
  double low[D], high[D];  // of the sources, scaled

  // Run by one warp.
  __device__ ImageSetup(const Lengths& box, const DeviceTree<D, T>& sources, const DeviceTree<D, T>& queries)
      : scale(scale_between<T>(box, sources, queries)), rule(true, false, scale) {
    for (int d = 0; d < D; ++d) {
      low[d] = std::numeric_limits<double>::infinity();
      high[d] = -low[d];
      top_extent(sources, d, &low[d], &high[d]);
      low[d] *= static_cast<double>(scale.factor);
      high[d] *= static_cast<double>(scale.factor);
    }
  }
};

template <int D, typename T>
struct ImageProblem {
  using Setup = ImageSetup<D, T>;

  DeviceTree<D, T> sources, queries;
  const int32_t *source_names, *query_rows, *query_names;  // null: their index, and their output row
  const Setup* setup;
  const Within<T>* within;  // a single one for all queries, or one per query in output order
  Lengths radius;
  bool one_set, half;

  __device__ int64_t output_row(int64_t query) const { return query_rows ? query_rows[query] : query; }
  __device__ int64_t source_name(int64_t source) const { return source_names ? source_names[source] : source; }
  __device__ int64_t query_name(int64_t query) const { return query_names ? query_names[query] : output_row(query); }
};

template <int D, typename T>
__global__ void make_image_radii(Lengths radius, const ImageSetup<D, T>* setup, Within<T>* within) {
  int64_t i = thread_index();
  if (i >= radius.count) return;
  double length = radius[i];
  within[i] = length >= 0 ? image_radius(setup->rule, length, setup->scale) : Within<T>{};
}

template <int D, typename T>
class ImageWalk {
 public:
  // Shared memory of a warp.
  JZTREE_BOTH static constexpr int shared_bytes(int planes) { return point_bytes + NodeStack::bytes(planes); }

  __device__ ImageWalk(const ImageProblem<D, T>& in, const ImageSetup<D, T>& setup, unsigned char* shared)
      : in_(in), setup_(setup), points_(reinterpret_cast<RowPoint<D, T>*>(shared)), stack_(shared + point_bytes) {}

  // Process the queries from `tile` on, before `end`, one per lane. visit(row): the lane's query forms a pair with the
  // current image of the source in this row.
  template <typename Visit>
  __device__ void run(int64_t tile, int64_t end, const Visit& visit) {
    query_ = tile + lane_index();
    used_ = query_ < end;
    limit_ = Within<T>{};
    double max_radius = -1;
    if (used_) {
      int64_t row = in_.radius.count > 1 ? in_.output_row(query_) : 0;
      limit_ = in_.within[row];
      max_radius = in_.radius[row];
      own_ = load_point(in_.queries.pos, query_, setup_.scale);
    }
    max_radius = warp_max(max_radius);
    if (max_radius < 0) return;
    possibly2_ = warp_max(limit_.possibly2);
    ImageRange range[D];
    if (!images(max_radius * static_cast<double>(setup_.scale.factor), range)) return;
    for (int d = 0; d < D; ++d) image_[d] = range[d].first;
    for (bool has_image = true; has_image; has_image = next_image(range)) {
      look_from();
      NodeRange nodes;
      for (stack_.begin(in_.sources); stack_.next(&nodes);) step(nodes, visit);
    }
  }

  // The current image of a pair, from the input positions: its difference in each dimension, in float64.
  __device__ void displacement(uint32_t row, double* difference) const {
    const T *a = in_.queries.pos + query_ * D, *b = in_.sources.pos + static_cast<int64_t>(row) * D;
    const RowPoint<D, T> other = load_point(in_.sources.pos, row, setup_.scale);
    for (int d = 0; d < D; ++d) {
      double inside = static_cast<double>(own_.x[d]) - static_cast<double>(other.x[d]);
      difference[d] =
          image_difference(setup_.rule, a[d], b[d], d, inside * static_cast<double>(setup_.scale.inverse), image_[d]);
    }
  }

 private:
  static constexpr int point_bytes = warp_size * static_cast<int>(sizeof(RowPoint<D, T>));

  // Set the range of images within this distance. Returns false if it is empty. All lanes call this together.
  __device__ bool images(double max_distance, ImageRange* range) {
    bool any = true;
    all_ = box_of_lanes(own_, used_);
    for (int d = 0; d < D; ++d) {
      range[d] = {0, 0};
      double period = setup_.scale.raw_period[d] * static_cast<double>(setup_.scale.factor);
      if (period > 0)
        range[d] = images_within<T>(all_.low[d], all_.high[d], setup_.low[d], setup_.high[d], period, max_distance);
      any &= range[d].first <= range[d].last;
    }
    return any;
  }

  // The last dimension fastest.
  __device__ bool next_image(const ImageRange* range) {
    for (int d = D - 1; d >= 0; --d) {
      if (image_[d] < range[d].last) {
        ++image_[d];
        return true;
      }
      image_[d] = range[d].first;
    }
    return false;
  }

  // Shift the queries by the current image.
  __device__ void look_from() {
    for (int d = 0; d < D; ++d) {
      T boxes = static_cast<T>(image_[d]);
      T shift = image_[d] == 0 ? T{0} : boxes * setup_.scale.period[d];
      T shift_rest = image_[d] == 0 ? T{0} : boxes * setup_.scale.period_rest[d];
      box_.low[d] = all_.low[d] - shift - shift_rest;
      box_.high[d] = all_.high[d] - shift - shift_rest;
      at_.x[d] = own_.x[d] - shift - shift_rest;
    }
  }

  // Test up to 32 nodes.
  template <typename Visit>
  __device__ void step(const NodeRange& range, const Visit& visit) {
    T open[D];
    for (int d = 0; d < D; ++d) open[d] = std::numeric_limits<T>::infinity();
    const LaneNode mine(in_.sources, range);
    bool is_open = mine.has_rows() &&
                   !(least_distance2(box_.low, box_.high, load_box(in_.sources, mine.node, setup_.scale.factor), open) >
                     possibly2_);
    stack_.open(in_.sources, range, mine, __ballot_sync(all_lanes, is_open),
                [&](uint32_t, uint32_t first, uint32_t end) { open_leaf(first, end, visit); });
  }

  template <typename Visit>
  __device__ void open_leaf(uint32_t first, uint32_t end, const Visit& visit) {
    each_tile(in_.sources.pos, first, end, setup_.scale, points_, [&](uint32_t tile, uint32_t count) {
      for (uint32_t i = 0; used_ && i < count; ++i)
        if (is_near(points_[i], tile + i) && is_wanted(tile + i)) visit(tile + i);
    });
  }

  __device__ bool is_near(const RowPoint<D, T>& other, uint32_t row) const {
    T distance2 = squared_distance<false>(at_, other, setup_.scale);
    if (distance2 > limit_.possibly2) return false;
    return distance2 < limit_.surely2 || is_within_as_given(row);
  }

  __device__ bool is_within_as_given(uint32_t row) const {
    double difference[D];
    displacement(row, difference);
    return limit_.exact.reaches(D, [&](int d) { return difference[d]; });
  }

  __device__ bool is_wanted(uint32_t row) const {
    if (!in_.one_set) return true;
    int64_t query = in_.query_name(query_), source = in_.source_name(row);
    if (query != source) return !in_.half || query < source;
    for (int d = 0; d < D; ++d)
      if (image_[d] != 0) return !in_.half || image_[d] > 0;
    return false;
  }

  const ImageProblem<D, T>& in_;
  const ImageSetup<D, T>& setup_;
  RowPoint<D, T>* points_;
  NodeStack stack_;
  // The lane's query, staged and shifted, and the data of the warp's queries.
  int64_t query_ = 0;
  bool used_ = false;
  Within<T> limit_{};
  RowPoint<D, T> own_{}, at_{};
  NodeBox<D, T> all_, box_;
  T possibly2_ = -1;
  int64_t image_[D];
};

}  // namespace jztree
