// Computes the requested vectors, distances and shifts of pairs with an image (image_rule.h), for one query and several
// sources at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cpu/exact_distances.h"
#include "image_walk.h"

namespace jztree {

template <int D, typename T>
class ImagePairs {
 public:
  ImagePairs(const PairsWithin<D, T>& in, const StagedPairs<D, T>& staged)
      : in_(in), staged_(staged), rule_(staged.rule), moved_(staged.moved()) {}

  // Select this query. Its next pair goes to this place.
  void start(int64_t query, int64_t place) {
    query_ = query;
    place_ = place;
    for (int d = 0; d < D; ++d) from_[d] = nearer(in_.queries.pos[query * D + d], rule_.period[d]);
  }

  // Add the pairs with an image of the sources in these rows.
  void add(const int32_t* rows, int64_t number, const BoxImage<D>& image) {
    while (number > 0) {
      const int64_t batch = std::min(number, capacity - number_);
      gather(rows, batch, image);
      number_ += batch;
      rows += batch;
      number -= batch;
      if (number_ == capacity) write();
    }
  }

  // Write the pending pairs.
  void write() {
    for (int d = 0; d < D; ++d) {
      for (T* numbers : {to_[d], inside_[d]}) std::fill(numbers + number_, numbers + end(), T{0});
      std::fill(image_[d] + number_, image_[d] + end(), 0.);
    }
    if (moved_) {
      measure<true>();
    } else {
      measure<false>();
    }
    put();
    place_ += number_;
    number_ = 0;
  }

 private:
  // The number of pairs per batch: a vector load stalls unless its numbers were stored long before.
  static constexpr int64_t capacity = 8 * lanes;

  void gather(const int32_t* rows, int64_t number, const BoxImage<D>& image) {
    for (int64_t i = 0; i < number; ++i) {
      const T* source = in_.sources.pos + int64_t{rows[i]} * D;
      for (int d = 0; d < D; ++d) to_[d][number_ + i] = source[d];
    }
    for (int d = 0; d < D; ++d) {
      std::fill_n(image_[d] + number_, number, static_cast<double>(image[static_cast<size_t>(d)]));
      if (moved_)
        for (int64_t i = 0; i < number; ++i) inside_[d][number_ + i] = staged_.sources.x[d][rows[i]];
    }
  }

  // Moved: whether any position was wrapped when it was staged, so that its image differs from that of the input
  // position.
  template <bool Moved>
  __attribute__((flatten)) void measure() {
    for (int64_t first = 0; first < end(); first += lanes) {
      Lanes<double> sum{};
      for (int d = 0; d < D; ++d) {
        Lanes<double> apart = difference<Moved>(first, d);
        Lanes<double> scaled = apart * rule_.factor;
        sum = sum + scaled * scaled;
        store(-apart, vector_[d] + first);
      }
      store(square_root(sum) * (1 / rule_.factor), distance_ + first);
    }
  }

  // The same as StagedPairs::apart, for some of the sources. The shifts overwrite the images.
  template <bool Moved>
  Lanes<double> difference(int64_t first, int d) {
    const double period = rule_.period[d];
    Lanes<double> to, image;
    load(to_[d] + first, to);
    if (!(period > 0)) return Lanes<double>(from_[d]) - to;
    load(image_[d] + first, image);
    if (!Moved) return difference_less(to, image, d);
    const Lanes<double> given = Lanes<double>(static_cast<double>(in_.queries.pos[query_ * D + d])) - to;
    double nearest[lanes];
    for (int64_t i = 0; i < lanes; ++i) nearest[i] = nearer(to_[d][first + i], rule_.period[d]);
    load(nearest, to);
    const Lanes<double> apart = Lanes<double>(from_[d]) - to;
    Lanes<double> inside;
    load(inside_[d] + first, inside);
    inside = (Lanes<double>(static_cast<double>(staged_.queries().x[d][query_])) - inside) *
             static_cast<double>(staged_.scale.inverse);
    const Lanes<double> out = difference_less(to, image + boxes(apart - inside, period), d);
    store(boxes(given - out, period), image_[d] + first);
    return out;
  }

  // The same as `less_periods`, for the difference from the query.
  Lanes<double> difference_less(const Lanes<double>& to, const Lanes<double>& periods, int d) const {
    const Lanes<double> from(from_[d]), apart = from - to, error = difference_error(from, to, apart);
    if (lanes_at_most(size_of(periods), Lanes<double>(1)) == 0xffff) return (apart - periods * rule_.period[d]) + error;
    double length[lanes], rest[lanes], by[lanes];
    store(apart, length);
    store(error, rest);
    store(periods, by);
    for (int64_t i = 0; i < lanes; ++i) length[i] = less_periods(length[i], rest[i], by[i], rule_.period[d]);
    Lanes<double> out;
    load(length, out);
    return out;
  }

  // The same as `whole_boxes`.
  static Lanes<double> boxes(const Lanes<double>& length, double period) {
    return choose(size_of(length) < Lanes<double>(period / 2), Lanes<double>(), nearest_whole(length, period));
  }

  void put() {
    if (in_.shift) put_rows(image_, in_.shift + place_ * D);
    if (!in_.vector) return;
    for (T* column : vector_) std::transform(column, column + end(), column, unsigned_zero<T>);
    put_rows(vector_, in_.vector + place_ * D);
    std::copy_n(distance_, number_, in_.distance + place_);
  }
  template <typename From, typename To>
  void put_rows(const From (&from)[D][capacity], To* to) const {
    for (int64_t i = 0; i < number_; ++i)
      for (int d = 0; d < D; ++d) to[i * D + d] = static_cast<To>(from[d][i]);
  }

  int64_t end() const { return (number_ + lanes - 1) / lanes * lanes; }

  const PairsWithin<D, T>& in_;
  const StagedPairs<D, T>& staged_;
  const DistanceRule<D, T>& rule_;
  const bool moved_;
  // The current query, the place of the next pair, and the pending sources.
  int64_t query_ = 0, place_ = 0, number_ = 0;
  double from_[D];
  T to_[D][capacity], inside_[D][capacity], vector_[D][capacity], distance_[capacity];
  double image_[D][capacity];
};

}  // namespace jztree
