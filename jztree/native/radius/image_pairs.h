// Vectors, distances and shifts of pairs with an image (image_rule.h), of one query and many sources at once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cpu/lanes.h"
#include "image_walk.h"

namespace jztree {

template <int D, typename T>
class ImagePairs {
 public:
  ImagePairs(const PairsWithin<D, T>& in, const StagedPairs<D, T>& staged)
      : in_(in), staged_(staged), rule_(staged.rule), moved_(staged.moved()) {}

  // Writes all three of the pairs of a query in places [begin, end), where the rows of their sources are. image: of all
  // of them; null: of each it is where its shift will be.
  void write(int64_t query, const BoxImage<D>* image, int64_t begin, int64_t end) {
    for (int d = 0; d < D; ++d) from_[d] = rule_.nearer(in_.queries.pos[query * D + d], d);
    for (int64_t first = begin; first < end; first += most) {
      number_ = std::min(most, end - first);
      gather(image, first);
      if (moved_) {
        measure<true>(query);
      } else {
        measure<false>(query);
      }
      put(first);
    }
  }

 private:
  // So many at a time: a vector is loaded long after its numbers were stored, or else it would have to wait for them.
  static constexpr int64_t most = 8 * lanes;

  // Positions and images of the sources in some places, and zeros up to whole vectors.
  void gather(const BoxImage<D>* image, int64_t first) {
    const int32_t *rows = in_.index + first, *images = in_.shift + first * D;
    for (int64_t i = 0; i < number_; ++i) {
      const T* source = in_.sources.pos + int64_t{rows[i]} * D;
      for (int d = 0; d < D; ++d) to_[d][i] = source[d];
    }
    for (int d = 0; d < D; ++d) {
      if (image) {
        std::fill_n(image_[d], number_, static_cast<double>((*image)[static_cast<size_t>(d)]));
      } else {
        for (int64_t i = 0; i < number_; ++i) image_[d][i] = images[i * D + d];
      }
      if (moved_)
        for (int64_t i = 0; i < number_; ++i) inside_[d][i] = staged_.sources.x[d][rows[i]];
      for (T* numbers : {to_[d], inside_[d]}) std::fill(numbers + number_, numbers + end(), T{0});
      std::fill(image_[d] + number_, image_[d] + end(), 0.);
    }
  }

  // Moved: whether any position is not where it was staged, so that its image is another one of it as given.
  template <bool Moved>
  __attribute__((flatten)) void measure(int64_t query) {
    for (int64_t first = 0; first < end(); first += lanes) {
      Lanes<double> sum{};
      for (int d = 0; d < D; ++d) {
        Lanes<double> apart = difference<Moved>(query, first, d);
        Lanes<double> scaled = apart * rule_.factor;
        sum = sum + scaled * scaled;
        store(-apart, vector_[d] + first);
      }
      store(square_root(sum) * (1 / rule_.factor), distance_ + first);
    }
  }

  // As StagedPairs::apart, of some of the sources. In place of their images, their shifts are there afterwards.
  template <bool Moved>
  Lanes<double> difference(int64_t query, int64_t first, int d) {
    const double period = rule_.period[d];
    Lanes<double> to, image;
    load(to_[d] + first, to);
    if (!(period > 0)) return Lanes<double>(from_[d]) - to;
    load(image_[d] + first, image);
    if (!Moved) return Lanes<double>(from_[d]) - to - image * period;
    const Lanes<double> given = Lanes<double>(static_cast<double>(in_.queries.pos[query * D + d])) - to;
    double near[lanes];
    for (int64_t i = 0; i < lanes; ++i) near[i] = rule_.nearer(to_[d][first + i], d);
    load(near, to);
    const Lanes<double> apart = Lanes<double>(from_[d]) - to;
    Lanes<double> inside;
    load(inside_[d] + first, inside);
    inside = (Lanes<double>(static_cast<double>(staged_.queries().x[d][query])) - inside) *
             static_cast<double>(staged_.scale.inverse);
    const Lanes<double> out = apart - (image + boxes(apart - inside, period)) * period;
    store(boxes(given - out, period), image_[d] + first);
    return out;
  }

  // As `whole_boxes`, of quotients below 2^51: the sum has no digits behind the point.
  static Lanes<double> boxes(const Lanes<double>& length, double period) {
    const Lanes<double> no_digits(0x1.8p52), half(period / 2);
    const Lanes<double> size = choose(length < Lanes<double>(), -length, length);
    return choose(size < half, Lanes<double>(), (length / Lanes<double>(period) + no_digits) - no_digits);
  }

  // To the places from `first` on.
  void put(int64_t first) const {
    T* vector = in_.vector + first * D;
    int32_t* shift = in_.shift + first * D;
    for (int64_t i = 0; i < number_; ++i)
      for (int d = 0; d < D; ++d) {
        vector[i * D + d] = vector_[d][i];
        shift[i * D + d] = static_cast<int32_t>(image_[d][i]);
      }
    std::copy_n(distance_, number_, in_.distance + first);
  }

  int64_t end() const { return (number_ + lanes - 1) / lanes * lanes; }

  const PairsWithin<D, T>& in_;
  const StagedPairs<D, T>& staged_;
  const DistanceRule<D, T>& rule_;
  const bool moved_;
  // The query and the sources at work.
  double from_[D];
  int64_t number_ = 0;
  T to_[D][most], inside_[D][most], vector_[D][most], distance_[most];
  double image_[D][most];
};

}  // namespace jztree
