// Sums over the particles of a group, for nearby particles, by a walk through its tree with the rules of group_walk.h.
//
// A warp takes a run, in parts of up to 32 particles, and each lane sums for a particle. In a step of the walk,
// lanes test up to 32 nodes, and share the far nodes in shared memory. Then all lanes add the fields of these nodes,
// and of the particles of leaves. No field is expanded about the middle of the run.
#pragma once

#include <cstdint>
#include <limits>

#include "common/cuda/warp.cuh"
#include "far_nodes.h"
#include "group_trees.cuh"
#include "image_field.cuh"

namespace jztree {

// Children of an opened node that are still to be tested.
struct Siblings {
  int32_t first, count;
};

template <int D, typename Real>
struct WalkMemory {
  static constexpr int numbers = std::max(row_numbers(D), node_numbers(D));

  Real sources[warp_size][numbers];

  // Of a warp. The opened nodes of each plane are on the stack at the same time only if one step opened them.
  static int64_t bytes(int planes) {
    return (static_cast<int64_t>(sizeof(WalkMemory)) + planes * warp_size * sizeof(Siblings) + 15) / 16 * 16;
  }
  __device__ Siblings* stack() { return reinterpret_cast<Siblings*>(this + 1); }
};

// The sums of a warp for some particles, one per lane. Images: whether images of the tree in a periodic box count, all
// of them or the nearest of each pair.
template <int D, typename Real, bool Images>
class WarpSums {
 public:
  double potential, acceleration[D];

  // root: the last node of the tree. halfway: halfway_width of the positions.
  __device__ WarpSums(const GravityNodes<D>& tree, int32_t root, const Softening& softening, bool has_negative,
                      double error, double halfway, const ImageGrid* grid, const double* wide_period,
                      WalkMemory<D, Real>& memory)
      : tree_(tree),
        root_(root),
        softening_(softening),
        has_negative_(has_negative),
        narrow_gap_(error >= least_narrow_error ? 1e-6 / error : 0),
        grid_(grid),
        wide_period_(wide_period),
        memory_(memory) {
    if (Images && grid) {
      double period[D];
      for (int d = 0; d < D; ++d) period[d] = grid->period[d % 3];
      nearest_ = NearestImages<D>(period, false, true, softening, halfway);
    } else if (Images) {
      nearest_ = NearestImages<D>(wide_period, true, false, softening, halfway);
    }
  }

  // Take the particles [begin, end), at most 32, of the run of a node.
  __device__ void take(int64_t begin, int64_t end) {
    begin_ = begin, end_ = end;
    row_ = begin + lane_index();
    for (int d = 0; d < D; ++d) {
      place_[d] = tree_.place[std::min(row_, end - 1) * D + d];
      box_.lower[d] = warp_min(place_[d]);
      box_.upper[d] = warp_max(place_[d]);
    }
  }
  __device__ bool has_particle() const { return row_ < end_; }
  __device__ int64_t row() const { return row_; }

  // Sum over all particles of the group. run: the node with the particles; other_images: the sums over images that
  // are not near, of each particle in z-order.
  template <bool Accelerate>
  __device__ void sum(const GravityNode<D>& run, const Accuracy& accuracy, const double* other_images) {
    box_.measure(narrow_gap_, Accelerate ? 1e-24 : 1e-30, softening_);
    for (int d = 0; d < D; ++d) {
      narrow_place_[d] = static_cast<Real>(place_[d] - box_.middle[d]);
      narrow_[d] = 0, acceleration[d] = 0;
    }
    narrow_[D] = 0, potential = 0;
    if (Images && other_images && has_particle()) {
      potential = other_images[row_ * 4 + 3];
      for (int d = 0; d < D && Accelerate; ++d) acceleration[d] = other_images[row_ * 4 + d];
    }
    const double sum_of_all = scale(run);
    limits_ = {NodeLimits(accuracy, sum_of_all, Images && grid_ ? grid_->shifts() : 1), accuracy.potential * sum_of_all,
               accuracy.acceleration};
    for (int image = 0; image < images(); ++image) {
      if (Images) take_shift(image);
      walk<Accelerate>();
    }
  }

  // The smallest acceleration, but not far below the largest.
  __device__ double least_acceleration() const {
    double square = 0;
    for (int d = 0; d < D; ++d) square += acceleration[d] * acceleration[d];
    const double least2 = warp_min(has_particle() ? square : std::numeric_limits<double>::infinity());
    return std::max(std::sqrt(least2), std::sqrt(warp_max(has_particle() ? square : 0.)) / 1024);
  }

 private:
  // An estimate of the smallest sum of |m| / r, from the node of the run, its siblings, and siblings of ancestors.
  __device__ double scale(const GravityNode<D>& run) const {
    double sum = 0;
    int32_t number = root_;
    while (tree_.nodes[number].begin < run.begin || run.end < tree_.nodes[number].end) {
      const bool has_child = lane_index() < tree_.nodes[number].children;
      const GravityNode<D>& child = tree_.nodes[tree_.nodes[number].child + (has_child ? lane_index() : 0)];
      const bool is_ancestor = has_child && child.begin <= run.begin && run.end <= child.end;
      if (has_child && !is_ancestor) sum += box_.term(child, softening_);
      number = tree_.nodes[number].child + __ffs(static_cast<int>(__ballot_sync(all_lanes, is_ancestor))) - 1;
    }
    return warp_sum(sum) + box_.term(tree_.nodes[number], softening_);
  }

  __device__ int images() const {
    if (!Images) return 1;
    if (grid_) return grid_->shifts();
    int number = 1;
    for (int d = 0; d < D; ++d) number *= wide_period_[d] > 0 ? 3 : 1;
    return number;
  }

  __device__ void take_shift(int image) {
    double sides[3];
    if (grid_) grid_->shift(image, sides);
    is_shifted_ = false;
    for (int d = 0; d < D; ++d) {
      const bool is_wide = !grid_ && wide_period_[d] > 0;
      shift_[d] = grid_ ? sides[d % 3] : is_wide ? (image % 3 - 1) * wide_period_[d] : 0;
      if (is_wide) image /= 3;
      is_shifted_ = is_shifted_ || shift_[d] != 0;
    }
  }
  __device__ double shifted(double place, int d) const { return Images ? place + shift_[d] : place; }

  // How a lane treats its node, at an image.
  struct Test {
    double centre[D], length2;
    Nearest nearest;
    bool separate, far;
  };

  template <bool Accelerate>
  __device__ Test test(const GravityNode<D>& node) const {
    Test result{{}, softening_.length2, Nearest::all, node.end <= begin_ || end_ <= node.begin, false};
    for (int d = 0; d < D; ++d) result.centre[d] = shifted(node.centre[d], d);
    if (Images) {
      result.separate = result.separate || is_shifted_;
      result.nearest = nearest_.of(box_, result.centre, node.reach);
      result.length2 = nearest_.length2_of(box_, result.nearest, result.centre);
    }
    const double gap2 = box_.gap2(result.centre, result.centre), rho = std::sqrt(gap2 + result.length2);
    const bool counts = !Images || !nearest_.only || result.nearest == Nearest::all;
    result.far =
        counts && result.separate && box_.template is_far<Accelerate>(node, gap2, rho, limits_.node, softening_);
    return result;
  }

  // Whether the far node of this lane may count as a whole although it is partly softened. `partly`: whether it is.
  template <bool Accelerate>
  __device__ bool softening_hardly_matters(const GravityNode<D>& node, bool partly) {
    const double error = partly ? nearest_.error(node) : 0, sum = limits_.used_softening + warp_inclusive_sum(error);
    const bool may = nearest_.template may_make<Accelerate>(sum, limits_.softened_potential, limits_.acceleration);
    limits_.used_softening = warp_max(partly && may ? sum : limits_.used_softening);
    return may;
  }

  template <bool Accelerate>
  __device__ void walk() {
    __syncwarp();
    if (lane_index() == 0) memory_.stack()[0] = {root_, 1};
    for (int size = 1; size > 0;) {
      JZTREE_COUNT("step of a walk");
      const int32_t number = take_node(size);
      bool has_node = number >= 0;
      GravityNode<D> node{};
      Test test{};
      if (has_node) {
        node = tree_.nodes[number];
        test = this->template test<Accelerate>(node);
      }
      if (Images && nearest_.only && test.nearest == Nearest::none) has_node = false;
      if (Images && nearest_.is_softened) {
        const bool partly = test.far && test.nearest == Nearest::some;
        if (!softening_hardly_matters<Accelerate>(node, partly) && partly) test.far = false;
      }
      push(size, has_node && !test.far && node.children > 0, {node.child, node.children});
      add_nodes<Accelerate>(test, number);
      add_leaves<Accelerate>(has_node && !test.far && node.children == 0, test, node, number);
      widen_sums<Accelerate>();
    }
  }

  // Float32 sums have few terms, because many equal terms would all be rounded in the same direction.
  template <bool Accelerate>
  __device__ void widen_sums() {
    potential += static_cast<double>(narrow_[D]);
    narrow_[D] = 0;
    for (int d = 0; d < D && Accelerate; ++d) {
      acceleration[d] += static_cast<double>(narrow_[d]);
      narrow_[d] = 0;
    }
  }

  // Take up to 32 nodes off the stack, one per lane; -1 for lanes without a node.
  __device__ int32_t take_node(int& size) {
    const int lane = lane_index();
    __syncwarp();
    Siblings siblings{0, 0};
    if (lane < size) siblings = memory_.stack()[size - 1 - lane];
    const int end = warp_inclusive_sum(siblings.count), begin = end - siblings.count;
    const bool is_in_batch = lane < size && end <= warp_size;
    size -= __popc(__ballot_sync(all_lanes, is_in_batch));
    const unsigned begins = warp_reduce(is_in_batch ? 1u << begin : 0u, [](unsigned a, unsigned b) { return a | b; });
    const int from = __popc(begins & ((2u << lane) - 1)) - 1;
    const int32_t first = __shfl_sync(all_lanes, siblings.first - begin, from);
    const int last = warp_max(is_in_batch ? end : 0);
    return lane < last ? first + lane : -1;
  }

  // The nodes that were on the stack longest belong to the highest plane, and so do their children. So a step that
  // takes nodes of one plane off the stack takes all nodes of lower planes too, and at most 32 of a plane are on the
  // stack.
  __device__ void push(int& size, bool opened, const Siblings& children) {
    const unsigned lanes = __ballot_sync(all_lanes, opened);
    __syncwarp();
    if (opened) memory_.stack()[size + __popc(lanes >> lane_index() >> 1)] = children;
    size += __popc(lanes);
  }

  template <bool Accelerate>
  __device__ void add_nodes(const Test& test, int32_t number) {
    const unsigned lanes = __ballot_sync(all_lanes, test.far);
    const int count = __popc(lanes);
    __syncwarp();
    if (test.far)
      pack_node(test.centre, tree_.moments[number], box_.middle, test.length2,
                memory_.sources[__popc(lanes & ((1u << lane_index()) - 1))]);
    __syncwarp();
    for (int n = 0; n < count; ++n) {
      JZTREE_COUNT("far node");
      if (has_negative_) {
        add_node_field<Accelerate, true, D>(memory_.sources[n], narrow_place_, narrow_);
      } else {
        add_node_field<Accelerate, false, D>(memory_.sources[n], narrow_place_, narrow_);
      }
    }
  }

  template <bool Accelerate>
  __device__ void add_leaves(bool is_leaf, const Test& test, const GravityNode<D>& node, int32_t number) {
    bool near = is_leaf && (!test.separate || test.nearest == Nearest::some);
    if (is_leaf && !near) {
      const NodeMoments<D>& moments = tree_.moments[number];
      double lower[D], upper[D];
      for (int d = 0; d < D; ++d) lower[d] = shifted(moments.lower[d], d), upper[d] = shifted(moments.upper[d], d);
      near = box_.gap2(lower, upper) <= box_.near2;
    }
    const unsigned near_lanes = __ballot_sync(all_lanes, near);
    for (unsigned leaves = __ballot_sync(all_lanes, is_leaf); leaves != 0; leaves &= leaves - 1) {
      const int lane = __ffs(static_cast<int>(leaves)) - 1;
      const int64_t begin = __shfl_sync(all_lanes, node.begin, lane), end = __shfl_sync(all_lanes, node.end, lane);
      const double length2 = __shfl_sync(all_lanes, test.nearest == Nearest::none ? 0 : softening_.length2, lane);
      if (near_lanes >> lane & 1) {
        add_near<Accelerate>(begin, end);
      } else {
        add_rows<Accelerate>(begin, end, length2);
      }
    }
  }

  // The rows of a leaf, fewer than 32.
  template <bool Accelerate>
  __device__ void add_rows(int64_t begin, int64_t end, double length2) {
    static_assert(2 * leaf_window <= warp_size);
    const int64_t row = begin + lane_index();
    __syncwarp();
    if (row < end) {
      Real* source = memory_.sources[lane_index()];
      for (int d = 0; d < D; ++d) source[d] = static_cast<Real>(shifted(tree_.place[row * D + d], d) - box_.middle[d]);
      source[D] = static_cast<Real>(tree_.weight[row]);
      source[D + 1] = static_cast<Real>(length2);
    }
    __syncwarp();
    for (int n = 0; n < end - begin; ++n) {
      JZTREE_COUNT("row of a leaf");
      add_row_field<Accelerate, D>(memory_.sources[n], narrow_place_, narrow_);
    }
  }

  // In float64, with all softenings, and without the pair of a particle with itself.
  template <bool Accelerate>
  __device__ void add_near(int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      JZTREE_COUNT("near row");
      double away[D], r2 = softening_.length2, share = 1;
      for (int d = 0; d < D; ++d) {
        const double place = tree_.place[row * D + d];
        away[d] = shifted(place, d) - place_[d];
        r2 += away[d] * away[d];
        if (Images && (nearest_.is_softened || nearest_.only))
          share *= nearest_.share(nearest_.depth(place - place_[d], shift_[d], d));
      }
      if (row == row_ && !(Images && is_shifted_)) continue;
      if (Images && nearest_.only && share == 0) continue;
      Attraction<double> pair = softened(r2, softening_.reach);
      if (Images && nearest_.is_softened && share < 1) {
        double bare2 = 0;
        for (int d = 0; d < D; ++d) bare2 += away[d] * away[d];
        pair = mean(share, pair, softened(bare2, softening_.reach));
      }
      const double weight = Images && nearest_.only ? share * tree_.weight[row] : tree_.weight[row];
      potential += pair.potential * weight;
      for (int d = 0; d < D && Accelerate; ++d) acceleration[d] += away[d] * pair.force * weight;
    }
  }

  const GravityNodes<D> tree_;
  const int32_t root_;
  const Softening softening_;
  const bool has_negative_;
  const double narrow_gap_;  // in sizes of the box, from which float32 is exact enough; 0 in float64
  const ImageGrid* grid_;    // of all images; null if only the nearest count
  const double* wide_period_;
  NearestImages<D> nearest_;
  WalkMemory<D, Real>& memory_;
  double shift_[D] = {};
  bool is_shifted_ = false;
  struct {
    NodeLimits node;
    double softened_potential, acceleration;  // of errors of partly softened nodes
    double used_softening = 0;
  } limits_;
  int64_t begin_, end_, row_;
  double place_[D];
  RunBox<D> box_;
  Real narrow_place_[D], narrow_[D + 1];  // relative to the middle of the box; sums
};

// The results, in float32 or float64. acceleration: null if it is not wanted.
struct FieldResults {
  void *potential, *acceleration;
  bool wide;

  __device__ double halfway() const { return wide ? halfway_width<double> : halfway_width<float>; }
  __device__ void write(void* values, int64_t i, double value) const {
    if (wide) {
      static_cast<double*>(values)[i] = value;
    } else {
      static_cast<float*>(values)[i] = static_cast<float>(value);
    }
  }
};

// A warp per run of a tree. Kernels of both types are launched; the error decides which does the work.
template <int D, typename Real, bool Accelerate, bool Images>
__global__ void __launch_bounds__(128)
    walk_trees(const __grid_constant__ GroupTrees<D> trees, ImageSums images, Lengths wanted_error, bool spline,
               FieldResults results, int64_t warp_bytes) {
  const double error = wanted_error[0];
  const bool all_images = trees.sums_over_images();
  if (std::is_same_v<Real, float> != (error >= least_narrow(all_images, Accelerate))) return;
  const int64_t part = thread_index() / warp_size, g = trees.owner(part, trees.rows_of_run);
  if (g < 0) return;
  const int64_t begin = trees.in.begin(g), rows = trees.in.size(g), runs = nodes_of_plane(rows, 1);
  const int64_t number = trees.number_in_group(g, part, trees.rows_of_run);
  if (number < trees.in.share.begin(runs) || number >= trees.in.share.end(runs)) return;
  const GroupFrame<D>& frame = trees.frame(g);
  if ((all_images || frame.is_wide) != Images) return;
  int64_t nodes = 0;
  for (int plane = 0; plane < planes_of(rows); ++plane) nodes += nodes_of_plane(rows, plane);
  const GravityNodes<D> tree = trees.tree(g);
  auto* memory = reinterpret_cast<WalkMemory<D, Real>*>(dynamic_shared() + threadIdx.x / warp_size * warp_bytes);
  const double* other_images = Images && all_images ? images.sums + begin * 4 : nullptr;
  WarpSums<D, Real, Images> sums(tree, static_cast<int32_t>(nodes - 1), Softening(frame.softening, spline),
                                 frame.has_negative, error, results.halfway(), all_images ? images.grid : nullptr,
                                 frame.wide_period, *memory);
  const GravityNode<D>& run = tree.nodes[nodes_of_plane(rows, 0) + number];
  const int64_t count = run.end - run.begin, tiles = (count + warp_size - 1) / warp_size;
  const double unit = frame.length_factor / frame.mass_factor;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    sums.take(run.begin + count * tile / tiles, run.begin + count * (tile + 1) / tiles);
    if (Accelerate) {
      constexpr double unlimited = std::numeric_limits<double>::infinity();
      sums.template sum<true>(run, {first_error, unlimited}, other_images);
      sums.template sum<true>(run, {error, error * sums.least_acceleration()}, other_images);
    } else {
      sums.template sum<false>(run, {error, 0}, other_images);
    }
    if (!sums.has_particle()) continue;
    const int64_t row = trees.order[begin + sums.row()];
    results.write(results.potential, row, -sums.potential * unit);
    for (int d = 0; d < D && Accelerate; ++d)
      results.write(results.acceleration, row * D + d, sums.acceleration[d] * frame.length_factor * unit);
  }
}

template <int D, bool Accelerate, bool Images>
void launch_walks(Queue& queue, const GroupTrees<D>& trees, const ImageSums& images, const Lengths& error, bool spline,
                  const FieldResults& results) {
  const int64_t warps = trees.in.rows / trees.rows_of_run;
  const int planes = planes_of(trees.in.rows);
  const int64_t narrow = WalkMemory<D, float>::bytes(planes), wide = WalkMemory<D, double>::bytes(planes);
  queue.launch_warps(warps, narrow, 128, walk_trees<D, float, Accelerate, Images>, trees, images, error, spline,
                     results, narrow);
  queue.launch_warps(warps, wide, 128, walk_trees<D, double, Accelerate, Images>, trees, images, error, spline, results,
                     wide);
}

template <int D, bool Accelerate>
void walk_trees_of_groups(Queue& queue, const GroupTrees<D>& trees, const Lengths& error, bool spline,
                          const FieldResults& results) {
  ImageSums images{};
  if constexpr (D == 3)
    if (trees.images) images = image_field(queue, trees, error);
  // Only the GPU knows whether images count.
  launch_walks<D, Accelerate, false>(queue, trees, images, error, spline, results);
  launch_walks<D, Accelerate, true>(queue, trees, images, error, spline, results);
}

}  // namespace jztree
