// The walk of a group of queries, a leaf of their hierarchy, through the hierarchy of the sources. It is repeated for
// each image of the box that may be within the radii: the group is shifted by whole boxes, and space is open. It runs
// on one thread.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "common/cpu/leaf_distances.h"
#include "image_rule.h"
#include "pairs_within.h"

namespace jztree {

// The shift of the queries in each dimension, as a number of boxes.
template <int D>
using BoxImage = std::array<int64_t, D>;

// Staged sources and queries.
template <int D, typename T>
struct StagedPairs {
  Scale<D, T> scale;
  StagedTree<D, T> sources;
  std::unique_ptr<StagedTree<D, T>> others;  // null if the sources are the queries, row by row
  DistanceRule<D, T> rule;
  double low[D], high[D];  // of the sources, scaled

  StagedPairs(const Parallel& parallel, const PairsWithin<D, T>& in, const double* box)
      : scale(box, open_span(box, in.sources, in.queries).template for_scale<T>()),
        sources(parallel, in.sources, scale),
        others(in.self ? nullptr : std::make_unique<StagedTree<D, T>>(parallel, in.queries, scale)),
        rule(true, false, scale) {
    const TreeLayout& layout = sources.layout();
    for (int d = 0; d < D; ++d) {
      low[d] = std::numeric_limits<double>::infinity();
      high[d] = -low[d];
      for (int64_t node = layout.starts.back() - layout.sizes.back(); node < layout.nodes(); ++node) {
        low[d] = std::min(low[d], static_cast<double>(sources.low[d][node]));
        high[d] = std::max(high[d], static_cast<double>(sources.high[d][node]));
      }
    }
  }

  const StagedTree<D, T>& queries() const { return others ? *others : sources; }

  // Whether any position was wrapped into the box.
  bool moved() const { return sources.wrapped() || queries().wrapped(); }

  // For comparison by "at most".
  Within<T> within(double radius) const {
    if (!(radius >= 0)) return {};
    Within<T> within = image_radius(rule, radius, scale);
    within.surely2 = std::nextafter(within.surely2, -std::numeric_limits<T>::infinity());
    return within;
  }

  // This image of a pair, from the input positions: its difference in each dimension, in float64.
  void displacement(const PairsWithin<D, T>& in, int64_t query, int64_t row, const BoxImage<D>& image,
                    double* difference) const {
    for (int d = 0; d < D; ++d) {
      double inside = static_cast<double>(queries().x[d][query]) - static_cast<double>(sources.x[d][row]);
      difference[d] = image_difference(rule, in.queries.pos[query * D + d], in.sources.pos[row * D + d], d,
                                       inside * static_cast<double>(scale.inverse), image[static_cast<size_t>(d)]);
    }
  }
};

template <int D, typename T>
class ImageWalk {
 public:
  using Image = BoxImage<D>;

  ImageWalk(const PairsWithin<D, T>& in, const StagedPairs<D, T>& staged)
      : in_(in),
        staged_(staged),
        sources_(staged.sources),
        queries_(staged.queries()),
        leaf_distances_(staged.scale, std::max(largest_leaf(staged.sources), largest_leaf(staged.queries()))) {
    std::fill_n(open_, D, std::numeric_limits<T>::infinity());
  }

  int64_t begin() const { return begin_; }
  int64_t count() const { return count_; }

  // Make this leaf the group.
  void set_group(int64_t leaf) {
    leaf_ = leaf;
    begin_ = queries_.leaf_row(leaf);
    count_ = queries_.leaf_row(leaf + 1) - begin_;
    within_.clear();
    possibly2_.assign(static_cast<size_t>(count_ + lanes), T{-1});
    double max_radius = -1;
    for (int64_t i = 0; i < count_; ++i) {
      double radius = in_.radius[in_.radius.count > 1 ? in_.queries.row_of(begin_ + i) : 0];
      within_.push_back(staged_.within(radius));
      possibly2_[static_cast<size_t>(i)] = within_.back().possibly2;
      max_radius = std::max(max_radius, radius);
    }
    most_possibly2_ = *std::max_element(possibly2_.begin(), possibly2_.end());
    any_ = max_radius >= 0 && images(leaf, max_radius * static_cast<double>(staged_.scale.factor));
  }
  // The range of searched images, from the first to the last, in the order of `next_image`.
  bool has_images() const { return any_ && first_ != last_; }
  const Image& first_image() const { return first_; }
  const Image& last_image() const { return last_; }

  // Advance to the next image, the last dimension fastest; false if this was the last.
  static bool next_image(Image& image, const Image& first, const Image& last) {
    size_t d = D;
    while (d > 0 && image[d - 1] == last[d - 1]) --d, image[d] = first[d];
    if (d == 0) return false;
    ++image[d - 1];
    return true;
  }

  // Call visit(i, first, chosen): the group's i-th query forms pairs with the current image of the sources in rows from
  // `first` on that have a bit in `chosen`. Images are visited in order, and within each image the rows. After each
  // image, seen() is called.
  template <typename Visit, typename Seen>
  void walk(const Visit& visit, const Seen& seen) {
    if (!any_) return;
    image_ = first_;
    do {
      look_from();
      int top = sources_.layout().planes() - 1;
      open(top, 0, sources_.layout().sizes[static_cast<size_t>(top)], visit);
      seen();
    } while (next_image(image_, first_, last_));
  }

 private:
  // Set the first and the last image that may be within this distance. Returns false if no image may be.
  bool images(int64_t leaf, double max_distance) {
    for (int d = 0; d < D; ++d) {
      first_[static_cast<size_t>(d)] = last_[static_cast<size_t>(d)] = 0;
      double period = staged_.scale.raw_period[d] * static_cast<double>(staged_.scale.factor);
      if (!(period > 0)) continue;
      ImageRange range = images_within<T>(queries_.low[d][leaf], queries_.high[d][leaf], staged_.low[d],
                                          staged_.high[d], period, max_distance);
      if (range.first > range.last) return false;
      first_[static_cast<size_t>(d)] = range.first;
      last_[static_cast<size_t>(d)] = range.last;
    }
    return true;
  }

  // Shift the group by the current image.
  void look_from() {
    shifted_ = false;
    for (int d = 0; d < D; ++d) {
      const int64_t boxes = image_[static_cast<size_t>(d)];
      shift_[d] = boxes == 0 ? T{0} : static_cast<T>(boxes) * staged_.scale.period[d];
      shift_rest_[d] = boxes == 0 ? T{0} : static_cast<T>(boxes) * staged_.scale.period_rest[d];
      shifted_ |= boxes != 0;
      low_[d] = shifted_down(queries_.low[d][leaf_], shift_[d], shift_rest_[d]);
      high_[d] = shifted_down(queries_.high[d][leaf_], shift_[d], shift_rest_[d]);
    }
    wants_itself_ = in_.one_set && is_mirror_wanted();
  }

  template <typename Visit>
  void open(int plane, int64_t begin, int64_t end, const Visit& visit) {
    constexpr int64_t block = 2 * lanes;
    int64_t start = sources_.layout().starts[static_cast<size_t>(plane)];
    for (int64_t first = begin; first < end; first += block) {
      T gap2[block];
      int64_t number = std::min(block, end - first);
      node_distances(sources_, low_, high_, open_, start + first, number, gap2);
      for (int64_t i = 0; i < number; ++i) {
        int64_t node = first + i, row = sources_.first_row(plane, node), behind = sources_.first_row(plane, node + 1);
        if (row == behind || gap2[i] > most_possibly2_) continue;
        if (plane > 0) {
          open(plane - 1, sources_.first_child(plane, node), sources_.first_child(plane, node + 1), visit);
        } else {
          open_leaf(node, row, visit);
        }
      }
    }
  }

  template <typename Visit>
  void open_leaf(int64_t leaf, int64_t rows, const Visit& visit) {
    leaf_distances_.set_leaf_of_image(sources_, leaf, shifted_, shift_, shift_rest_);
    for (int64_t block = 0; block < count_; block += lanes) {
      Lanes<T> possibly2;
      load(possibly2_.data() + block, possibly2);
      uint32_t open = leaf_distances_.within(queries_, begin_ + block, count_ - block, possibly2);
      leaf_distances_.each(queries_, begin_ + block, open, [&](int64_t i) {
        return Look<Visit>{*this, block + i,
                           rows,  static_cast<int32_t>(in_.query_name(begin_ + block + i)),
                           visit, within_[static_cast<size_t>(block + i)]};
      });
    }
  }

  // A query's comparison with a leaf. It has no branch on the results, because such a branch would be unpredictable.
  template <typename Visit>
  struct Look {
    const ImageWalk& walk;
    const int64_t i, rows;
    const int32_t name;
    const Visit& visit;
    const Within<T> within;

    void operator()(int64_t first, uint32_t used, const Lanes<T>& distance2) const {
      const int64_t row = rows + first;
      uint32_t possibly = used & lanes_at_most(distance2, Lanes<T>(within.possibly2));
      uint32_t mask = used & lanes_at_most(distance2, Lanes<T>(within.surely2));
      if (possibly != mask) mask |= walk.decide(i, row, possibly & ~mask, within.exact);
      if (walk.in_.one_set) mask &= walk.partners(name, row);
      visit(i, row, mask);
    }
    void done() const {}
  };

  JZTREE_APART uint32_t decide(int64_t i, int64_t row, uint32_t unsure, const ExactRadius& radius) const {
    uint32_t within = 0;
    for (; unsure != 0; unsure &= unsure - 1) {
      int lane = __builtin_ctz(unsure);
      if (is_within(i, row + lane, radius)) within |= 1u << lane;
    }
    return within;
  }

  bool is_within(int64_t i, int64_t row, const ExactRadius& radius) const {
    double difference[D];
    staged_.displacement(in_, begin_ + i, row, image_, difference);
    return radius.reaches(D, [&](int d) { return difference[d]; });
  }

  // Among the rows from `row` on, the partners of the particle with this name, if queries and sources are one set.
  uint32_t partners(int32_t name, int64_t row) const {
    const Lanes<int32_t> mine(name), others = names(row);
    uint32_t before = lanes_below(others, mine), behind = lanes_below(mine, others);
    if (wants_itself_) return in_.half ? ~before : ~0u;
    return in_.half ? behind : before | behind;
  }

  // The names of the rows from `row` on; arbitrary after the last row.
  Lanes<int32_t> names(int64_t row) const {
    if (!in_.sources.rows) return Lanes<int32_t>(static_cast<int32_t>(row)) + places<int32_t>();
    Lanes<int32_t> out;
    const int64_t remaining = in_.sources.pos.rows() - row;
    if (remaining >= lanes) {
      load(in_.sources.rows + row, out);
    } else {
      int32_t last[lanes] = {};
      std::copy_n(in_.sources.rows + row, remaining, last);
      load(last, out);
    }
    return out;
  }

  // Whether a particle pairs with its own image. A half list contains only one of two images that mirror each other.
  bool is_mirror_wanted() const {
    for (int64_t boxes : image_)
      if (boxes != 0) return !in_.half || boxes > 0;
    return false;
  }

  const PairsWithin<D, T>& in_;
  const StagedPairs<D, T>& staged_;
  const StagedTree<D, T>&sources_, &queries_;
  LeafDistances<D, T> leaf_distances_;
  T open_[D];
  // The current group.
  int64_t leaf_ = 0, begin_ = 0, count_ = 0;
  std::vector<Within<T>> within_;
  std::vector<T> possibly2_;  // of each query, followed by `lanes` empty ones
  T most_possibly2_ = -1;
  bool any_ = false;
  // The current image.
  Image first_{}, last_{}, image_{};
  T low_[D], high_[D], shift_[D], shift_rest_[D];
  bool shifted_ = false, wants_itself_ = false;
};

}  // namespace jztree
