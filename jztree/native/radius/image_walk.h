// The walk of a group of queries, a leaf of their hierarchy, through that of the sources, once for each image of the
// box that may be within their radii: the group is shifted by whole boxes, and space is open. By one thread.
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

// By how many boxes the queries are shifted in each dimension.
template <int D>
using BoxImage = std::array<int64_t, D>;

// Sources and queries staged.
template <int D, typename T>
struct StagedPairs {
  Scale<D, T> scale;
  StagedTree<D, T> sources;
  std::unique_ptr<StagedTree<D, T>> others;  // null if the sources are the queries, row by row
  DistanceRule<D, T> rule;
  double low[D], high[D];  // of all sources, scaled

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

  // To be compared by "at most".
  Within<T> within(double radius) const {
    if (!(radius >= 0)) return {};
    Within<T> within = image_radius(rule, radius, scale);
    within.surely2 = std::nextafter(within.surely2, -std::numeric_limits<T>::infinity());
    return within;
  }

  // This image of a pair as given: its difference in each dimension, in float64.
  void apart(const PairsWithin<D, T>& in, int64_t query, int64_t row, const BoxImage<D>& image,
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
      : in_(in), staged_(staged), sources_(staged.sources), queries_(staged.queries()) {
    std::fill_n(open_, D, std::numeric_limits<T>::infinity());
  }

  int64_t begin() const { return begin_; }
  int64_t count() const { return count_; }

  // From now on, the group is this leaf.
  void set_group(int64_t leaf) {
    leaf_ = leaf;
    begin_ = queries_.leaf_row(leaf);
    count_ = queries_.leaf_row(leaf + 1) - begin_;
    within_.clear();
    double farthest = -1;
    for (int64_t i = 0; i < count_; ++i) {
      double radius = in_.radius[in_.radius.count > 1 ? in_.output_row(begin_ + i) : 0];
      within_.push_back(staged_.within(radius));
      farthest = std::max(farthest, radius);
    }
    any_ = farthest >= 0 && images(leaf, farthest * static_cast<double>(staged_.scale.factor));
  }
  // Whether there is more than one image to look at.
  bool has_images() const { return any_ && first_ != last_; }
  // If not, the one.
  const Image& image() const { return first_; }

  // visit(i, first, chosen, image): the group's i-th query and this image of the sources in rows from `first` on that
  // have a bit in `chosen` are pairs. In the order of the images, then of the rows.
  template <typename Visit>
  void walk(const Visit& visit) {
    if (!any_) return;
    for (image_ = first_;;) {
      look_from();
      int top = sources_.layout().planes() - 1;
      open(top, 0, sources_.layout().sizes[static_cast<size_t>(top)], visit);
      // The next image, the last dimension fastest.
      int d = D - 1;
      for (; d >= 0 && image_[static_cast<size_t>(d)] == last_[static_cast<size_t>(d)]; --d)
        image_[static_cast<size_t>(d)] = first_[static_cast<size_t>(d)];
      if (d < 0) return;
      ++image_[static_cast<size_t>(d)];
    }
  }

 private:
  // The first and the last image that may be within so far; false if there is none.
  bool images(int64_t leaf, double farthest) {
    for (int d = 0; d < D; ++d) {
      first_[static_cast<size_t>(d)] = last_[static_cast<size_t>(d)] = 0;
      double period = staged_.scale.raw_period[d] * static_cast<double>(staged_.scale.factor);
      if (!(period > 0)) continue;
      ImageRange range = images_within<T>(queries_.low[d][leaf], queries_.high[d][leaf], staged_.low[d],
                                          staged_.high[d], period, farthest);
      if (range.first > range.last) return false;
      first_[static_cast<size_t>(d)] = range.first;
      last_[static_cast<size_t>(d)] = range.last;
    }
    return true;
  }

  // From now on, the group is shifted by the image at work.
  void look_from() {
    at_.resize(static_cast<size_t>(count_ * D));
    for (int d = 0; d < D; ++d) {
      T boxes = static_cast<T>(image_[static_cast<size_t>(d)]);
      T by = image_[static_cast<size_t>(d)] == 0 ? T{0} : boxes * staged_.scale.period[d];
      T rest = image_[static_cast<size_t>(d)] == 0 ? T{0} : boxes * staged_.scale.period_rest[d];
      low_[d] = queries_.low[d][leaf_] - by - rest;
      high_[d] = queries_.high[d][leaf_] - by - rest;
      for (int64_t i = 0; i < count_; ++i) at_[static_cast<size_t>(i * D + d)] = queries_.x[d][begin_ + i] - by - rest;
    }
    possibly2_ = -1;
    for (const Within<T>& within : within_) possibly2_ = std::max(possibly2_, within.possibly2);
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
        if (row == behind || gap2[i] > possibly2_) continue;
        if (plane > 0) {
          open(plane - 1, sources_.first_child(plane, node), sources_.first_child(plane, node + 1), visit);
        } else {
          open_leaf(node, row, behind, visit);
        }
      }
    }
  }

  template <typename Visit>
  void open_leaf(int64_t leaf, int64_t first, int64_t end, const Visit& visit) {
    for (int64_t i = 0; i < count_; ++i) {
      const Within<T>& within = within_[static_cast<size_t>(i)];
      if (leaf_gap2(leaf, i) > within.possibly2) continue;
      for (int64_t row = first; row < end; row += lanes) {
        uint32_t used = end - row >= lanes ? 0xffffu : (1u << (end - row)) - 1;
        uint32_t chosen = near(i, row, used, within);
        if (in_.same) chosen = partners(i, row, chosen);
        if (chosen != 0) visit(i, row, chosen, image_);
      }
    }
  }

  // A lower bound of the squared distance of a query and a leaf.
  T leaf_gap2(int64_t leaf, int64_t i) const {
    T sum = 0;
    for (int d = 0; d < D; ++d) {
      T x = at_[static_cast<size_t>(i * D + d)];
      T gap = std::max(std::max(sources_.low[d][leaf] - x, x - sources_.high[d][leaf]), T{0});
      sum += gap * gap;
    }
    return sum * below_one<T>;
  }

  // Which of the rows from `row` on that have a bit in `used` are within.
  __attribute__((flatten)) uint32_t near(int64_t i, int64_t row, uint32_t used, const Within<T>& within) const {
    Lanes<T> sum{};
    for (int d = 0; d < D; ++d) {
      Lanes<T> x;
      load(sources_.x[d] + row, x);
      Lanes<T> difference = Lanes<T>(at_[static_cast<size_t>(i * D + d)]) - x;
      sum = sum + difference * difference;
    }
    uint32_t possibly = used & lanes_at_most(sum, Lanes<T>(within.possibly2));
    uint32_t unsure = possibly & ~lanes_at_most(sum, Lanes<T>(within.surely2));
    for (; unsure != 0; unsure &= unsure - 1) {
      int lane = __builtin_ctz(unsure);
      if (!is_within(i, row + lane, within.exact)) possibly &= ~(1u << lane);
    }
    return possibly;
  }

  JZTREE_APART bool is_within(int64_t i, int64_t row, const ExactRadius& radius) const {
    double difference[D];
    staged_.apart(in_, begin_ + i, row, image_, difference);
    return radius.reaches(D, [&](int d) { return difference[d]; });
  }

  // Those of the chosen rows that are partners, of one set, of the i-th query.
  uint32_t partners(int64_t i, int64_t row, uint32_t chosen) const {
    const int64_t mine = in_.query_name(begin_ + i);
    uint32_t out = chosen;
    for (uint32_t left = chosen; left != 0; left &= left - 1) {
      int64_t other = in_.source_name(row + __builtin_ctz(left));
      if (other == mine ? !is_mirror_wanted() : in_.half && mine > other) out &= ~(left & -left);
    }
    return out;
  }

  // Whether a particle is a partner of its image at work; of two that mirror each other, half of a list has one.
  bool is_mirror_wanted() const {
    for (int64_t boxes : image_)
      if (boxes != 0) return !in_.half || boxes > 0;
    return false;
  }

  const PairsWithin<D, T>& in_;
  const StagedPairs<D, T>& staged_;
  const StagedTree<D, T>&sources_, &queries_;
  T open_[D];
  // The group at work.
  int64_t leaf_ = 0, begin_ = 0, count_ = 0;
  std::vector<Within<T>> within_;
  bool any_ = false;
  Image first_{}, last_{}, image_{};
  std::vector<T> at_;
  T low_[D], high_[D], possibly2_ = -1;
};

}  // namespace jztree
