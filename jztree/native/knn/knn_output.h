// Writes neighbours and their distances.
//
// A search compares distances in the precision of the positions. The output holds distances computed in float64 from
// the given positions (common/distance_rule.h) and rounded once. Neighbours are sorted by these distances. So two
// neighbours may change places if their distances differ by a rounding error.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
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
  bool exclude_self;   // a query that is a source is not its own neighbour
  bool has_bounds;     // `radius` has bounds; see Neighbours
  const DistanceRule<D, T> rule;

  Output(const Neighbours<D, T>& in, const Scale<D, T>& scale)
      : radius(in.radii()),
        k(in.k()),
        own_offset(*in.own_offset),
        exclude_self(in.exclude_self),
        has_bounds(in.open != nullptr),
        rule(false, false, scale),
        in_(in),
        distances_(rule, in.sources.pos) {}

  int64_t row(int64_t query) const { return in_.queries.row_of(query); }

  // See ExactDistances::find_squares.
  void find_squares(int64_t query, const int32_t* sources, int64_t number, double* out) const {
    distances_.find_squares(in_.queries.pos + query * D, sources, number, out);
  }

  double distance2(int64_t query, int64_t source) const {
    return rule.distance2(in_.queries.pos + query * D, in_.sources.pos + source * D);
  }
  int32_t reported(int64_t source) const { return static_cast<int32_t>(in_.sources.row_of(source)); }

  template <int Locality>
  JZTREE_INLINE void prefetch_row(int64_t query) const {
    prefetch<Locality>(index_of(query), k);
    if (radius) prefetch<Locality>(radius_of(query), k);
  }

  int32_t* index_of(int64_t query) const { return in_.index + row(query) * k; }
  // Null if not wanted.
  T* radius_of(int64_t query) const { return radius ? radius + row(query) * k : nullptr; }

  // Write the rows to report for four sources. A single store waits less for the memory of the output than four.
  template <typename Row>
  JZTREE_INLINE void put_rows(const Row& row, int32_t* index) const {
    typedef int32_t Rows __attribute__((vector_size(16)));
    const int64_t row0 = row(0), row1 = row(1), row2 = row(2), row3 = row(3);
    Rows rows{static_cast<int32_t>(row0), static_cast<int32_t>(row1), static_cast<int32_t>(row2),
              static_cast<int32_t>(row3)};
    if (const int32_t* reported = in_.sources.rows)
      rows = Rows{reported[row0], reported[row1], reported[row2], reported[row3]};
    std::memcpy(index, &rows, sizeof(rows));
  }

  // The first `number` neighbours of a query.
  void write(int64_t query, const int32_t* sources, const T* lengths, int64_t number) const {
    int32_t* index = index_of(query);
    for (int64_t i = 0; i < number; ++i) index[i] = reported(sources[i]);
    if (radius) std::copy_n(lengths, number, radius_of(query));
    clear_from(query, number);
  }

  // A query has no neighbours from this number on.
  void clear_from(int64_t query, int64_t number) const {
    std::fill(index_of(query) + number, index_of(query) + k, -1);
    if (radius) std::fill(radius_of(query) + number, radius_of(query) + k, std::numeric_limits<T>::infinity());
  }

 private:
  const Neighbours<D, T>& in_;
  const ExactDistances<D, T> distances_;
};

// Writes the answers of a search in R.
template <int D, typename R, typename T>
class Answers {
 public:
  Answers(const StagedTree<D, R>& sources, const StagedTree<D, R>& queries, const Output<D, T>& out)
      : sources_(sources),
        queries_(queries),
        out_(out),
        plain_(std::is_same<R, T>::value && !sources.moved_or_faded() && !queries.moved_or_faded()) {}

  // sorted: the candidates of a query, and space for one more block. Only the first can be the query itself.
  void write(int64_t query, Candidate<R>* sorted) {
    int64_t number = out_.k;
    while (number > 0 && row_plus_one(sorted, number - 1) == no_row) --number;
    const bool has_self = row_plus_one(sorted, 0) == 0;
    if (has_self) sorted[0] = make_candidate<R>(0, static_cast<uint32_t>(query + out_.own_offset + 1));
    if (!write_in_order(query, sorted, number, has_self)) write_sorted(query, sorted, number, has_self);
  }

 private:
  static constexpr int64_t block = 8;  // the number of neighbours that are written at once
  using Wide = Lanes<double, block>;

  static uint32_t row_plus_one(const Candidate<R>* sorted, int64_t i) { return candidate_row_plus_one<R>(sorted[i]); }

  // Returns whether the distances rise. Otherwise the written answer is in the wrong order.
  bool write_in_order(int64_t query, const Candidate<R>* sorted, int64_t number, bool has_self) const {
    if (number < block) return write_few(query, sorted, number, has_self);
    if (!plain_) return false;
    return sources_.scale().periodic ? write_blocks<true>(query, sorted, number)
                                     : write_blocks<false>(query, sorted, number);
  }

  bool write_few(int64_t query, const Candidate<R>* sorted, int64_t number, bool has_self) const {
    int32_t* index = out_.index_of(query);
    T* radius = out_.radius_of(query);
    double last = -1;
    bool rises = true;
    for (int64_t i = 0; i < number; ++i) {
      const int64_t row = int64_t{row_plus_one(sorted, i)} - 1;
      const double square = has_self && i == 0 ? 0 : out_.distance2(query, row);
      rises &= last < square;
      last = square;
      index[i] = out_.reported(row);
      if (radius) radius[i] = square == 0 ? T{0} : out_.rule.length(square);
    }
    if (number < out_.k) out_.clear_from(query, number);
    return rises;
  }

  template <bool Periodic>
  __attribute__((flatten)) bool write_blocks(int64_t query, const Candidate<R>* sorted, int64_t number) const {
    int32_t* index = out_.index_of(query);
    T* radius = out_.radius_of(query);
    Wide from[D];
    for (int d = 0; d < D; ++d) from[d] = Wide(static_cast<double>(queries_.x[d][query]));
    auto last = typename Wide::Register{} - 1;  // below all squares
    uint32_t falls = 0;
    const auto write = [&](int64_t first) {
      return write_block<Periodic>(from, sorted + first, last, index + first, radius ? radius + first : nullptr);
    };
    for (int64_t first = 0; first + block <= number; first += block) falls |= write(first);
    // The last block overlaps the previous one.
    if (number % block != 0) falls |= write(number - block) & ~1u;
    if (number < out_.k) out_.clear_from(query, number);
    return falls == 0;
  }

  // The distances have the bits of the rule: staged positions are the input positions times a power of two. Returns the
  // neighbours that are not farther than the one before. `last` has the square before the block in its last lane.
  template <bool Periodic>
  JZTREE_INLINE uint32_t write_block(const Wide* from, const Candidate<R>* sorted, typename Wide::Register& last,
                                     int32_t* index, T* radius) const {
    const auto row = [&](int64_t i) { return int64_t{row_plus_one(sorted, i)} - 1; };
    for (int64_t i = 0; i < block; i += 4) out_.put_rows([&](int64_t lane) { return row(i + lane); }, index + i);
    Wide squares{};
    for (int d = 0; d < D; ++d) {
      Wide to;
      gather(sources_.x[d], row, to);
      const Wide apart = Periodic ? shortest(from[d], to, sources_.scale().scaled_period(d)) : from[d] - to;
      squares = squares + apart * apart;
    }
    if (radius) store(square_root(squares) * static_cast<double>(sources_.scale().inverse), radius);
    Wide before;
    Wide::each_register([&](int i) { shift(i > 0 ? squares.part[i - 1] : last, squares.part[i], before.part[i]); });
    last = squares.part[Wide::registers - 1];
    return lanes_at_most(squares, before);
  }

  // Sorts by distance, then by row. Few neighbours change places.
  JZTREE_APART void write_sorted(int64_t query, const Candidate<R>* sorted, int64_t number, bool has_self) {
    rows_.resize(static_cast<size_t>(number));
    squares_.resize(rows_.size());
    lengths_.resize(rows_.size());
    int32_t* rows = rows_.data();
    double* squares = squares_.data();
    for (int64_t i = 0; i < number; ++i) rows[i] = static_cast<int32_t>(row_plus_one(sorted, i) - 1);
    out_.find_squares(query, rows, number, squares);
    for (int64_t i = has_self + 1; i < number; ++i)
      for (int64_t place = i;
           place > has_self && std::pair(squares[place], rows[place]) < std::pair(squares[place - 1], rows[place - 1]);
           --place) {
        std::swap(rows[place], rows[place - 1]);
        std::swap(squares[place], squares[place - 1]);
      }
    for (int64_t i = 0; i < number; ++i) lengths_[static_cast<size_t>(i)] = out_.rule.length(squares[i]);
    out_.write(query, rows, lengths_.data(), number);
  }

  const StagedTree<D, R>&sources_, &queries_;
  const Output<D, T>& out_;
  const bool plain_;  // whether staged positions equal the input positions times a power of two
  // The neighbours of a query that are sorted again.
  std::vector<int32_t> rows_;
  std::vector<double> squares_;
  std::vector<T> lengths_;
};

}  // namespace jztree
