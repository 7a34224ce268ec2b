// Sums over the particles of a group for a run of its particles, by a walk through its tree (J. Barnes & P. Hut, 1986,
// Nature 324, 446).
//
// A node that is far enough away counts with its mass, its lever, which is 0 unless masses have different signs, and
// its second moments (L. Hernquist, 1987, ApJS 64, 715). Plummer's softening acts like one more dimension with the same
// distance for all particles. The first term that is left out is at most the sum of m |y|^3 over the fourth power of
// the distance, and usually a tenth of that. A node is accepted if the product of its reach and its sum of m |y|^2,
// which is not below the former sum, is small compared with the sum of potentials, about `scale()`. Errors of nodes
// have random signs, so they may be large compared with the error of the result; `node_tolerance` and
// `loose_acceleration` state how large (chosen so that errors stay below two thirds of the limit in uniform, Plummer,
// NFW, clustered and two-body sets of 200,000 particles). The nodes of an image have similar errors, so the tolerance
// is smaller for many images.
//
// If a node is also far compared with the size of the run, its field is expanded about the middle of the run up to
// second order, for 16 nodes at once. These errors have the same sign for all nodes in one direction, so their sum is
// limited too. Otherwise the node's field is computed at each particle.
//
// In a periodic box without groups, the walk begins at every near image of the tree; image_field.h has the field of the
// other images. Plummer's softening acts on the nearest image of a particle only. In a group that is wider than half
// the box, the walk begins at the images that may be the nearest, and leaves out particles with a nearer image.
//
// Distances are relative to the middle of the run. Float32 suffices for these unless a source is near compared with the
// size of the run; such sources are summed in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "far_nodes.h"
#include "gravity_lanes.h"
#include "group_tree.h"
#include "image_field.h"

namespace jztree {

constexpr double loose_expansion = 2;
// At smaller distances, in extents of the group, 15 / r^7, a factor of expansions, exceeds float32.
constexpr double least_expanded = 5e-6;

template <int D, typename Real>
class RunSums {
 public:
  static_assert(D <= ImageField::max_dims);

  // halfway: halfway_width of the positions.
  RunSums(const GroupTree<D>& tree, const ImageField& images, const Softening& softening, double halfway, double error)
      : tree_(tree),
        images_(images),
        softening_(softening),
        narrow_gap_(error >= least_narrow_error ? 1e-6 / error : 0),
        nearest_(images.period(), images.only_nearest(), !images.is_open(), softening, halfway) {}

  // Sum over all particles of the group for the particles of a run.
  template <bool Accelerate>
  void sum(const Run& run, const Accuracy& accuracy) {
    begin_ = run.begin, end_ = run.end;
    take_targets(Accelerate ? 1e-24 : 1e-30);
    if (!images_.is_open()) add_images<Accelerate>();
    if (tree_.planes.empty()) {
      each_image([&] { add_near<Accelerate>(0, tree_.rows()); });
    } else {
      walk<Accelerate>(accuracy, scale());
      flush_rows<Accelerate>();
      flush_nodes<Accelerate>();
      add_expansion<Accelerate>();
      add_close<Accelerate>(begin_, end_);
    }
  }

  // The smallest acceleration of the run, but not far below the largest.
  double least_acceleration() const {
    double least2 = std::numeric_limits<double>::infinity(), largest2 = 0;
    for (int64_t i = 0; i < count(); ++i) {
      double square = 0;
      for (int d = 0; d < D; ++d) square += acceleration[d][i] * acceleration[d][i];
      least2 = std::min(least2, square);
      largest2 = std::max(largest2, square);
    }
    return std::max(std::sqrt(least2), std::sqrt(largest2) / 1024);
  }

  int64_t count() const { return end_ - begin_; }
  double potential[run_capacity], acceleration[D][run_capacity];  // sums of m / r, and of m (x' - x) / r^3

 private:
  static constexpr int64_t rows_room = 512, nodes_room = 128;
  static constexpr int pairs = Pairs<D>::with_self;
  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  // Call work with each near image in place, and leave no image in place.
  template <typename Work>
  void each_image(const Work& work) {
    for (image_ = 0; image_ < images_.shifts().size(); ++image_) {
      for (int d = 0; d < D; ++d) shift_[d] = images_.shifts()[image_][at(d)];
      shifted_ = std::any_of(shift_, shift_ + D, [](double shift) { return shift != 0; });
      work();
    }
    std::fill_n(shift_, D, 0.);
    shifted_ = false;
  }

  template <bool Accelerate>
  void add_images() {
    if constexpr (D == 3) {
      for (int64_t i = 0; i < count(); i += targets<double>) {
        Targets<double> x[D], sums[D + 1] = {};
        for (int d = 0; d < D; ++d) load(wide_place_[d] + i, x[d]);
        images_.template add<Accelerate>(x, sums[D], sums);
        store(sums[D], potential + i);
        for (int d = 0; d < D && Accelerate; ++d) store(sums[d], acceleration[d] + i);
      }
    }
  }

  void take_targets(double least_square) {
    const int64_t room = (count() + lanes - 1) / lanes * lanes;
    for (int d = 0; d < D; ++d) {
      box_.lower[d] = box_.upper[d] = tree_.place[at(begin_ * D + d)];
      for (int64_t row = begin_; row < end_; ++row) {
        box_.lower[d] = std::min(box_.lower[d], tree_.place[at(row * D + d)]);
        box_.upper[d] = std::max(box_.upper[d], tree_.place[at(row * D + d)]);
      }
    }
    box_.measure(narrow_gap_, least_square, softening_);
    for (int d = 0; d < D; ++d) {
      for (int64_t i = 0; i < room; ++i) {
        wide_place_[d][i] = tree_.place[at(std::min(begin_ + i, end_ - 1) * D + d)];
        place_[d][i] = static_cast<Real>(wide_place_[d][i] - box_.middle[d]);
      }
      std::fill_n(acceleration[d], room, 0);
    }
    std::fill_n(potential, room, 0);
  }

  // An estimate of the smallest sum of |m| / r in the run, from its siblings and the siblings of its ancestors.
  double scale() const {
    double sum = 0;
    const GravityNode<D>* node = &tree_.nodes.back();
    while (node->begin < begin_ || end_ < node->end) {
      const GravityNode<D>* inner = nullptr;
      for (int32_t i = node->child; i < node->child + node->children; ++i) {
        const GravityNode<D>& child = tree_.nodes[at(i)];
        if (child.begin <= begin_ && end_ <= child.end) {
          inner = &child;
        } else {
          sum += box_.term(child, softening_);
        }
      }
      node = inner;
    }
    return sum + box_.term(*node, softening_);
  }

  // The errors that may be made for a run: by one node, and by all expansions, whose errors have the same sign.
  struct Limits {
    NodeLimits node;
    double expanded_potential, expanded_acceleration;
    bool expands;
    double used_potential = 0, used_acceleration = 0;  // by expansions
    double used_softening = 0;                         // by nodes that are partly softened
  };

  template <bool Accelerate>
  void walk(const Accuracy& accuracy, double scale) {
    // A first walk, which estimates the accelerations, must not overestimate small ones. In fewer than three
    // dimensions, most accelerations are small differences of large terms.
    const bool expands = !tree_.has_negative && (!Accelerate || (D >= 3 && std::isfinite(accuracy.acceleration)));
    Limits limits{NodeLimits(accuracy, scale, static_cast<int64_t>(images_.is_open() ? 1 : images_.shifts().size())),
                  accuracy.potential * scale, accuracy.acceleration, expands};
    each_image([&] { walk_image<Accelerate>(limits); });
  }

  // Plane by plane, so that the nodes below are in the cache before their turn.
  template <bool Accelerate>
  void walk_image(Limits& limits) {
    plane_.assign(1, static_cast<int32_t>(tree_.nodes.size()) - 1);
    while (!plane_.empty()) {
      below_.clear();
      for (const int32_t number : plane_) visit<Accelerate>(number, limits);
      std::swap(plane_, below_);
    }
  }

  template <bool Accelerate>
  void visit(int32_t number, Limits& limits) {
    const GravityNode<D>& node = tree_.nodes[at(number)];
    double centre[D];
    for (int d = 0; d < D; ++d) centre[d] = node.centre[d] + shift_[d];
    const double gap2 = box_.gap2(centre, centre);
    const bool separate = shifted_ || node.end <= begin_ || end_ <= node.begin;
    const Nearest image = nearest_.of(box_, centre, node.reach);
    if (nearest_.only && image == Nearest::none) return;
    const double length2 = nearest_.length2_of(box_, image, centre);
    bool far = separate && box_.may_be_far(node, gap2, gap2 + length2, limits.node);
    const double rho = far ? std::sqrt(gap2 + length2) : 0;
    far = far && box_.template is_far<Accelerate>(node, gap2, rho, limits.node, softening_);
    if (far && image == Nearest::some) far = !nearest_.only && softening_hardly_matters<Accelerate>(node, limits);
    if (far && rho > box_.reach && may_expand<Accelerate>(node, rho, limits)) {
      prefetch(reinterpret_cast<const char*>(&tree_.moments[at(number)]), sizeof(NodeMoments<D>));
      expanded_[expanded_count_++] = {number, static_cast<int32_t>(image_), length2};
      if (expanded_count_ == nodes_room) flush_expanded();
    } else if (far) {
      add_node<Accelerate>(number, centre, length2);
    } else if (node.children == 0) {
      if (separate) add_leaf<Accelerate>(number, image);
    } else {
      const int64_t bytes = node.children * static_cast<int64_t>(sizeof(GravityNode<D>));
      prefetch(reinterpret_cast<const char*>(&tree_.nodes[at(node.child)]), bytes);
      for (int32_t i = 0; i < node.children; ++i) below_.push_back(node.child + i);
    }
  }

  // Use up a part of the limits if the field of a far node may be expanded.
  template <bool Accelerate>
  bool may_expand(const GravityNode<D>& node, double rho, Limits& limits) const {
    if (!limits.expands || (narrow_gap_ > 0 && rho <= least_expanded)) return false;
    const double share = node.size * box_.reach2 / (rho * rho * rho * (rho - box_.reach));
    const double error = share * box_.reach, force_error = 3 * share;
    if (error > loose_expansion * limits.node.potential || limits.used_potential + error > limits.expanded_potential)
      return false;
    if (Accelerate && (force_error > loose_expansion * limits.node.acceleration ||
                       limits.used_acceleration + force_error > limits.expanded_acceleration))
      return false;
    limits.used_potential += error;
    limits.used_acceleration += force_error;
    return true;
  }

  // Use up a part of the limits if a partly softened node may count as one source.
  template <bool Accelerate>
  bool softening_hardly_matters(const GravityNode<D>& node, Limits& limits) const {
    const double used = limits.used_softening + nearest_.error(node);
    if (!nearest_.template may_make<Accelerate>(used, limits.expanded_potential, limits.expanded_acceleration))
      return false;
    limits.used_softening = used;
    return true;
  }

  // Expand the fields of nodes about the middle of the run; lanes are nodes.
  void flush_expanded() {
    using V = Lanes<Real>;
    Real columns[D + 2 + pairs][nodes_room];
    const int64_t room = (expanded_count_ + lanes - 1) / lanes * lanes;
    for (int64_t n = 0; n < room; ++n) {
      const Expanded& node = expanded_[std::min(n, expanded_count_ - 1)];
      const NodeMoments<D>& moments = tree_.moments[at(node.number)];
      const Real kept = n < expanded_count_ ? Real{1} : Real{0};
      const ImageField::Shift& shift = images_.shifts()[at(node.image)];
      for (int d = 0; d < D; ++d) {
        const double centre = tree_.nodes[at(node.number)].centre[d] + shift[at(d)];
        columns[d][n] = static_cast<Real>(centre - box_.middle[d]);
      }
      columns[D + 1 + pairs][n] = static_cast<Real>(node.length2);
      columns[D][n] = static_cast<Real>(moments.mass) * kept;
      for (int pair = 0; pair < pairs; ++pair)
        columns[D + 1 + pair][n] = static_cast<Real>(moments.inertia[pair]) * kept;
    }
    for (int64_t n = 0; n < room; n += lanes) {
      V away[D], tensed[D], mass, r2, trace{}, along{};
      load(columns[D + 1 + pairs] + n, r2);
      for (int d = 0; d < D; ++d) {
        load(columns[d] + n, away[d]);
        r2 = r2 + away[d] * away[d];
        tensed[d] = V{};
      }
      load(columns[D] + n, mass);
      Pairs<D>::visit_with_self([&](int pair, int j, int k) {
        V inertia;
        load(columns[D + 1 + pair] + n, inertia);
        tensed[j] = tensed[j] + away[k] * inertia;
        if (j != k) tensed[k] = tensed[k] + away[j] * inertia;
        if (j == k) trace = trace + inertia;
      });
      for (int d = 0; d < D; ++d) along = along + away[d] * tensed[d];
      const V inverse = inverse_of_root(r2), inverse2 = inverse * inverse, inverse3 = inverse * inverse2;
      const V turned = along * inverse2;
      const V radial = mass + (turned * Real{7.5} - trace * Real{1.5}) * inverse2;
      local_[0] = local_[0] + (mass + (turned * Real{1.5} - trace * Real{0.5}) * inverse2) * inverse;
      for (int d = 0; d < D; ++d)
        local_[1 + d] = local_[1 + d] + (radial * away[d] - tensed[d] * inverse2 * Real{3}) * inverse3;
      const V inverse5 = inverse3 * inverse2, fifth = inverse5 * Real{3};
      const V straight = mass * fifth + (turned * Real{52.5} - trace * Real{7.5}) * (inverse2 * inverse5);
      const V bent = inverse2 * inverse5 * Real{-15};
      local_[1 + D + pairs] =
          local_[1 + D + pairs] + mass * inverse3 + (turned * Real{7.5} - trace * Real{1.5}) * inverse5;
      Pairs<D>::visit_with_self([&](int pair, int j, int k) {
        V inertia;
        load(columns[D + 1 + pair] + n, inertia);
        const V tension = (tensed[j] * away[k] + tensed[k] * away[j]) * bent + inertia * fifth;
        local_[1 + D + pair] = local_[1 + D + pair] + away[j] * away[k] * straight + tension;
      });
    }
    expanded_count_ = 0;
  }

  template <bool Accelerate>
  void add_expansion() {
    if (expanded_count_ > 0) flush_expanded();
    double sums[D + 2 + pairs];
    for (int i = 0; i < D + 2 + pairs; ++i) {
      Real all[lanes];
      double wide[lanes];
      store(local_[i], all);
      std::copy_n(all, lanes, wide);
      sums[i] = std::accumulate(wide, wide + lanes, 0.);
      local_[i] = Lanes<Real>{};
    }
    for (int64_t i = 0; i < count(); ++i) {
      double value = sums[0], y[D], force[D];
      for (int d = 0; d < D; ++d) {
        y[d] = wide_place_[d][i] - box_.middle[d];
        force[d] = -sums[1 + D + pairs] * y[d];
      }
      Pairs<D>::visit_with_self([&](int pair, int j, int k) {
        force[j] += sums[1 + D + pair] * y[k];
        if (j != k) force[k] += sums[1 + D + pair] * y[j];
      });
      for (int d = 0; d < D; ++d) {
        value += y[d] * (sums[1 + d] + force[d] / 2);
        if (Accelerate) acceleration[d][i] += sums[1 + d] + force[d];
      }
      potential[i] += value;
    }
  }

  template <bool Accelerate>
  void add_leaf(int32_t number, Nearest image) {
    const GravityNode<D>& leaf = tree_.nodes[at(number)];
    const NodeMoments<D>& moments = tree_.moments[at(number)];
    double lower[D], upper[D];
    for (int d = 0; d < D; ++d) lower[d] = moments.lower[d] + shift_[d], upper[d] = moments.upper[d] + shift_[d];
    if (box_.gap2(lower, upper) <= box_.near2 || image == Nearest::some)
      return add_close<Accelerate>(leaf.begin, leaf.end);
    for (int64_t row = leaf.begin; row < leaf.end; ++row) {
      Real* source = rows_[row_count_++];
      for (int d = 0; d < D; ++d)
        source[d] = static_cast<Real>((tree_.place[at(row * D + d)] + shift_[d]) - box_.middle[d]);
      source[D] = static_cast<Real>(tree_.weight[at(row)]);
      source[D + 1] = static_cast<Real>(image == Nearest::none ? 0 : softening_.length2);
    }
    if (row_count_ > rows_room - 2 * leaf_window) flush_rows<Accelerate>();
  }

  template <bool Accelerate>
  void flush_rows() {
    using V = Targets<Real>;
    for (int64_t i = 0; i < count(); i += targets<Real>) {
      V x[D], sums[D + 1] = {};
      load_targets(i, x);
      for (int64_t s = 0; s < row_count_; ++s) add_row_field<Accelerate, D>(rows_[s], x, sums);
      add_sums<Accelerate>(i, sums);
    }
    row_count_ = 0;
  }

  void load_targets(int64_t i, Targets<Real>* x) const {
    for (int d = 0; d < D; ++d) load(place_[d] + i, x[d]);
  }
  // Float32 sums have few terms, because many equal terms would all be rounded in the same direction.
  template <bool Accelerate>
  void add_sums(int64_t i, const Targets<Real>* sums) {
    for (int d = Accelerate ? 0 : D; d <= D; ++d) {
      double* to = (d == D ? potential : acceleration[d]) + i;
      Real terms[targets<Real>];
      Lanes<double, targets<Real>> before, added;
      store(sums[d], terms);
      load(terms, added);
      load(to, before);
      store(before + added, to);
    }
  }

  template <bool Accelerate>
  void add_node(int32_t number, const double* centre, double length2) {
    pack_node(centre, tree_.moments[at(number)], box_.middle, length2, nodes_[node_count_++]);
    if (node_count_ == nodes_room) flush_nodes<Accelerate>();
  }

  template <bool Accelerate>
  void flush_nodes() {
    if (tree_.has_negative) {
      flush_nodes_with<Accelerate, true>();
    } else {
      flush_nodes_with<Accelerate, false>();
    }
  }

  template <bool Accelerate, bool Lever>
  void flush_nodes_with() {
    using V = Targets<Real>;
    for (int64_t i = 0; i < count(); i += targets<Real>) {
      V x[D], sums[D + 1] = {};
      load_targets(i, x);
      for (int64_t n = 0; n < node_count_; ++n) add_node_field<Accelerate, Lever, D>(nodes_[n], x, sums);
      add_sums<Accelerate>(i, sums);
    }
    node_count_ = 0;
  }

  // Sources that may be near some targets of the run, or softened for some: pairs that are near, or about half the box
  // apart, in float64, all others in `Real`.
  template <bool Accelerate>
  void add_close(int64_t from, int64_t to) {
    if (nearest_.only || box_.near2 > box_.reach2 / 16) {
      add_near<Accelerate>(from, to);
    } else if (nearest_.is_softened) {
      add_close_with<Accelerate, true>(from, to);
    } else {
      add_close_with<Accelerate, false>(from, to);
    }
  }

  // Halved: whether only nearest images are softened.
  template <bool Accelerate, bool Halved>
  void add_close_with(int64_t from, int64_t to) {
    using V = Targets<Real>;
    const V near2(static_cast<Real>(box_.near2)), all_softening2(static_cast<Real>(softening_.length2)), none{};
    const V halfway(static_cast<Real>(nearest_.halfway + halfway_width<Real>));  // `Real` rounds places
    Real inverse_half[D];
    for (int d = 0; d < D; ++d) inverse_half[d] = static_cast<Real>(1 / nearest_.half[d]);
    for (int64_t i = 0; i < count(); i += targets<Real>) {
      V x[D], sums[D + 1] = {};
      load_targets(i, x);
      const uint32_t used = (uint32_t{2} << (std::min(count() - i, targets<Real>) - 1)) - 1;
      for (int64_t row = from; row < to; ++row) {
        V away[D], r2{}, depth(Real{1}), softening2 = all_softening2;
        for (int d = 0; d < D; ++d) {
          const double place = (tree_.place[at(row * D + d)] + shift_[d]) - box_.middle[d];
          away[d] = V(static_cast<Real>(place)) - x[d];
          r2 = r2 + away[d] * away[d];
          if (Halved) depth = smaller(depth, V(Real{1}) - larger(away[d], -away[d]) * inverse_half[d]);
        }
        if (Halved) {
          softening2 = choose(none < depth, softening2, none);
          r2 = choose(halfway < larger(depth, -depth), r2, none);
        }
        const auto separate = near2 < r2;
        const V inverse = inverse_of_root(choose(separate, r2 + softening2, V(Real{1})));
        const V pairs = choose(separate, inverse * static_cast<Real>(tree_.weight[at(row)]), none);
        sums[D] = sums[D] + pairs;
        const V force = pairs * (inverse * inverse);
        for (int d = 0; d < D && Accelerate; ++d) sums[d] = sums[d] + away[d] * force;
        for (uint32_t near_lanes = lanes_at_most(r2, near2) & used; near_lanes != 0; near_lanes &= near_lanes - 1)
          add_pair<Accelerate>(i + __builtin_ctz(near_lanes), row);
      }
      add_sums<Accelerate>(i, sums);
    }
  }

  // In float64, with all softenings, unless both are the same particle.
  template <bool Accelerate>
  void add_pair(int64_t target, int64_t row) {
    if (!shifted_ && row == begin_ + target) return;
    double away[D], square = 0, share = 1;
    for (int d = 0; d < D; ++d) {
      const double place = tree_.place[at(row * D + d)], x = wide_place_[d][target];
      if (nearest_.is_softened) share *= nearest_.share(nearest_.depth(place - x, shift_[d], d));
      away[d] = (place + shift_[d]) - x;
      square += away[d] * away[d];
    }
    Attraction<double> pair = softened(share > 0 ? square + softening_.length2 : square, softening_.reach);
    if (share > 0 && share < 1) pair = mean(share, pair, softened(square, softening_.reach));
    potential[target] += pair.potential * tree_.weight[at(row)];
    for (int d = 0; d < D && Accelerate; ++d) acceleration[d][target] += away[d] * pair.force * tree_.weight[at(row)];
  }

  // In float64, with all softenings, and without the pair of a particle with itself.
  template <bool Accelerate>
  void add_near(int64_t from, int64_t to) {
    if (nearest_.is_softened || nearest_.only) {
      add_near_with<Accelerate, true>(from, to);
    } else {
      add_near_with<Accelerate, false>(from, to);
    }
  }

  // HasShares: whether only nearest images are softened, or only they count. A template, because merged loops are
  // slower, and GCC warns about them wrongly.
  template <bool Accelerate, bool HasShares>
  void add_near_with(int64_t from, int64_t to) {
    using V = Lanes<double>;
    const bool parted = HasShares && nearest_.is_softened;
    const V softening2(softening_.length2), none{};
    for (int64_t i = 0; i < count(); i += lanes) {
      V x[D], sums[D + 1];
      for (int d = 0; d < D; ++d) load(wide_place_[d] + i, x[d]);
      load(potential + i, sums[D]);
      for (int d = 0; d < D; ++d) load(acceleration[d] + i, sums[d]);
      const V target = places<double>() + V(static_cast<double>(begin_ + i));
      for (int64_t row = from; row < to; ++row) {
        V away[D], least(1.), share(1.), square{};
        for (int d = 0; d < D; ++d) {
          const double place = tree_.place[at(row * D + d)];
          away[d] = V(place + shift_[d]) - x[d];
          square = square + away[d] * away[d];
          if (HasShares) least = smaller(least, nearest_.depth(V(place) - x[d], shift_[d], d));
        }
        if (HasShares) share = shares_of(x, row, least);
        const V r2 = square + (parted ? choose(none < share, softening2, none) : softening2);
        Attraction<V> pair = softened(r2, softening_.reach);
        if (parted && has_halfway(least))  // not at small distances, where forces may be infinite
          pair = shared(share, pair, square);
        const V weight(tree_.weight[at(row)]);
        V mass = shifted_ ? weight : choose(target == V(static_cast<double>(row)), none, weight);
        if (HasShares && nearest_.only) mass = mass * share;
        sums[D] = sums[D] + pair.potential * mass;
        if (!Accelerate) continue;
        for (int d = 0; d < D; ++d) sums[d] = sums[d] + away[d] * pair.force * mass;
      }
      for (int d = 0; d < D; ++d) store(sums[d], acceleration[d] + i);
      store(sums[D], potential + i);
    }
  }

  // Only a share of the pair is softened. In its own function, so that the compiler inlines the usual attraction.
  JZTREE_APART Attraction<Lanes<double>> shared(const Lanes<double>& share, const Attraction<Lanes<double>>& pair,
                                                const Lanes<double>& square) const {
    using V = Lanes<double>;
    return mean(share, pair, softened(choose(share < V(1.), square, V(1.)), softening_.reach));
  }

  bool has_halfway(const Lanes<double>& least) const {
    const Lanes<double> width(nearest_.halfway);
    return (lanes_at_most(least, width) & lanes_at_most(-width, least)) != 0;
  }

  // The shares of an image that is the nearest. least: the smallest depth of each lane.
  Lanes<double> shares_of(const Lanes<double>* x, int64_t row, const Lanes<double>& least) const {
    using V = Lanes<double>;
    if (!has_halfway(least)) return nearest_.share(least);
    V share(1.);
    for (int d = 0; d < D; ++d)
      share = share * nearest_.share(nearest_.depth(V(tree_.place[at(row * D + d)]) - x[d], shift_[d], d));
    return share;
  }

  const GroupTree<D>& tree_;
  const ImageField& images_;
  const Softening softening_;
  const double narrow_gap_;  // in sizes of the run, from which float32 is exact enough; 0 in float64
  const NearestImages<D> nearest_;
  size_t image_ = 0;
  double shift_[D] = {};
  bool shifted_ = false;
  int64_t begin_ = 0, end_ = 0;
  RunBox<D> box_;
  double wide_place_[D][run_capacity];
  Real place_[D][run_capacity];  // relative to the middle
  int64_t row_count_ = 0, node_count_ = 0, expanded_count_ = 0;
  struct Expanded {
    int32_t number, image;
    double length2;
  };
  Expanded expanded_[nodes_room];
  std::vector<int32_t> plane_, below_;  // the nodes to visit
  // The expansion about the middle: potential, acceleration, and of its gradient the part along the ways to the nodes,
  // and the isotropic part.
  Lanes<Real> local_[D + 2 + pairs] = {};
  Real rows_[rows_room][row_numbers(D)], nodes_[nodes_room][node_numbers(D)];
};

}  // namespace jztree
