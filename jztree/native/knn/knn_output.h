// Writes neighbours and their distances.
//
// A search compares distances in the precision of the positions. The output holds distances computed in float64 from
// the given positions (common/distance_rule.h) and rounded once. Neighbours are sorted by these distances. So two
// neighbours may change places if their distances differ by a rounding error.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/cpu/candidate.h"
#include "common/cpu/exact_distances.h"
#include "common/cpu/memory.h"
#include "common/cpu/staged_tree.h"
#include "knn.h"

namespace jztree {

template <int D, typename T>
class Output {
 public:
  T* radius;  // (q, k); null: not wanted
  int64_t k;
  int64_t own_offset;  // query i is source i + own_offset; negative: queries are not sources
  bool others;         // a query that is a source is not its own neighbour
  bool found;          // `radius` has bounds; see Neighbours
  const DistanceRule<D, T> rule;

  Output(const Neighbours<D, T>& in, const Scale<D, T>& scale)
      : radius(in.radii()),
        k(in.k()),
        own_offset(*in.own_offset),
        others(in.others),
        found(in.open != nullptr),
        rule(false, false, scale),
        in_(in),
        distances_(rule, in.sources.pos) {}

  int64_t row(int64_t query) const { return in_.output_row(query); }

  // See ExactDistances::find_squares.
  void find_squares(int64_t query, const int32_t* sources, int64_t number, double* out) const {
    distances_.find_squares(in_.queries.pos + query * D, sources, number, out);
  }

  JZTREE_INLINE void prefetch_row(int64_t query) const {
    prefetch(in_.index + row(query) * k, k);
    if (radius) prefetch(radius + row(query) * k, k);
  }

  // The first `number` neighbours of a query.
  void write(int64_t query, const int32_t* sources, const T* lengths, int64_t number) const {
    int32_t* index = in_.index + row(query) * k;
    if (in_.source_rows) {
      for (int64_t i = 0; i < number; ++i) index[i] = in_.source_rows[sources[i]];
    } else {
      std::copy_n(sources, number, index);
    }
    std::fill(index + number, index + k, -1);
    if (!radius) return;
    T* to = radius + row(query) * k;
    std::copy_n(lengths, number, to);
    std::fill(to + number, to + k, std::numeric_limits<T>::infinity());
  }

 private:
  const Neighbours<D, T>& in_;
  const ExactDistances<D, T> distances_;
};

// Holds the answers to several queries of one thread before they go to the output. A vector load stalls if its numbers
// were stored shortly before, so each step processes all these queries before the next step. R: the dtype of the
// search.
template <int D, typename R, typename T>
class Answers {
 public:
  Answers(const StagedTree<D, R>& sources, const StagedTree<D, R>& queries, const Output<D, T>& out)
      : sources_(sources),
        queries_(queries),
        out_(out),
        plain_(std::is_same<R, T>::value && !sources.moved_or_faded() && !queries.moved_or_faded()),
        most_(std::max(int64_t{512} / std::max(out.k, int64_t{1}), int64_t{1})),
        rows_(static_cast<size_t>(most_ * out.k + lanes)),
        squares_(rows_.size()),
        lengths_(rows_.size()),
        held_(static_cast<size_t>(most_)) {
    for (int d = 0; d < D; ++d) {
      from_[d].resize(rows_.size());
      to_[d].resize(rows_.size());
    }
  }

  // Drops all answers since the last flush.
  void clear() { count_ = 0; }

  // sorted: the candidates of a query, and one more block that is not used. Only the first can be the query itself.
  void add(int64_t query, const Candidate<R>* sorted) {
    if (count_ == most_) flush();
    out_.prefetch_row(query);
    const int64_t k = out_.k, first = count_ * k;
    int32_t* rows = rows_.data() + first;
    each_block(k, [&](int64_t i) { rows[i] = static_cast<int32_t>(candidate_row_plus_one<R>(sorted[i]) - 1); });
    std::fill_n(rows + k, block, 0);
    Held& held = held_[static_cast<size_t>(count_++)];
    held = {query, k, candidate_row_plus_one<R>(*sorted) == 0};
    if (held.own) rows[0] = static_cast<int32_t>(query + out_.own_offset);
    for (; held.number > 0 && candidate_row_plus_one<R>(sorted[held.number - 1]) == no_row; --held.number)
      rows[held.number - 1] = 0;
    if (plain_) load_places(query, rows, first);
  }

  void flush() {
    if (plain_) {
      find_squares();
    } else {
      for (int64_t n = 0; n < count_; ++n)
        out_.find_squares(held_[static_cast<size_t>(n)].query, rows_.data() + n * out_.k,
                          held_[static_cast<size_t>(n)].number, squares_.data() + n * out_.k);
    }
    find_lengths();
    for (int64_t n = 0; n < count_; ++n) {
      const Held& held = held_[static_cast<size_t>(n)];
      const int64_t first = n * out_.k;
      if (!rises(first, held.number)) sort(first + held.own, first + held.number);
      out_.write(held.query, rows_.data() + first, lengths_.data() + first, held.number);
    }
    count_ = 0;
  }

 private:
  using Wide = Lanes<double>;

  struct Held {
    int64_t query, number;
    bool own;
  };

  void load_places(int64_t query, const int32_t* rows, int64_t first) {
    for (int d = 0; d < D; ++d) {
      const R* x = sources_.x[d];
      R *to = to_[d].data() + first, *from = from_[d].data() + first;
      const Lanes<R> at(queries_.x[d][query]);
      for (int64_t i = 0; i < out_.k; i += lanes) store(at, from + i);
      each_block(out_.k, [&](int64_t i) { to[i] = x[rows[i]]; });
    }
  }

  // Rounds the number up, because a loop of known length needs no branches.
  static constexpr int64_t block = 8;
  template <typename Work>
  static void each_block(int64_t number, const Work& work) {
    for (int64_t first = 0; first < number; first += block)
      for (int64_t i = first; i < first + block; ++i) work(i);
  }

  // The bits of the rule: staged positions are the input positions times a power of two.
  __attribute__((flatten)) void find_squares() {
    for (int64_t first = 0; first < count_ * out_.k; first += lanes) {
      Wide sum{};
      for (int d = 0; d < D; ++d) {
        Wide from, to;
        load(from_[d].data() + first, from);
        load(to_[d].data() + first, to);
        const Wide apart = shortest(from, to, sources_.scale().scaled_period(d));
        sum = sum + apart * apart;
      }
      store(sum, squares_.data() + first);
    }
  }

  __attribute__((flatten)) void find_lengths() {
    const double unit = plain_ ? static_cast<double>(sources_.scale().inverse) : 1 / out_.rule.factor;
    for (int64_t first = 0; first < count_ * out_.k; first += lanes) {
      Wide squares;
      load(squares_.data() + first, squares);
      store(square_root(squares) * unit, lengths_.data() + first);
    }
  }

  bool rises(int64_t first, int64_t number) const {
    uint32_t falls = 0;
    for (int64_t i = 1; i < number; i += lanes) {
      Wide before, after;
      load(squares_.data() + first + i - 1, before);
      load(squares_.data() + first + i, after);
      falls |= lanes_at_most(after, before) & (number - i < lanes ? (1u << (number - i)) - 1 : 0xffffu);
    }
    return falls == 0;
  }

  // By distance, then by row. Few entries change places.
  JZTREE_APART void sort(int64_t begin, int64_t end) {
    for (int64_t i = begin + 1; i < end; ++i)
      for (int64_t place = i; place > begin && is_before(place, place - 1); --place) {
        std::swap(rows_[static_cast<size_t>(place)], rows_[static_cast<size_t>(place - 1)]);
        std::swap(squares_[static_cast<size_t>(place)], squares_[static_cast<size_t>(place - 1)]);
        std::swap(lengths_[static_cast<size_t>(place)], lengths_[static_cast<size_t>(place - 1)]);
      }
  }
  bool is_before(int64_t i, int64_t j) const {
    const double mine = squares_[static_cast<size_t>(i)], other = squares_[static_cast<size_t>(j)];
    return mine < other || (mine == other && rows_[static_cast<size_t>(i)] < rows_[static_cast<size_t>(j)]);
  }

  const StagedTree<D, R>&sources_, &queries_;
  const Output<D, T>& out_;
  const bool plain_;    // whether staged positions equal the input positions
  const int64_t most_;  // number of queries held at a time
  // k per query.
  std::vector<int32_t> rows_;
  std::vector<double> squares_;
  std::vector<T> lengths_;
  std::vector<R> from_[D], to_[D];  // coordinates of the query and of the source
  std::vector<Held> held_;
  int64_t count_ = 0;
};

}  // namespace jztree
