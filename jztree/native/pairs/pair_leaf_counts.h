// Counts the pairs of two leaves.
//
// For each particle of the first leaf, the box of the second leaf limits the edges that can separate its pairs. If
// these are few, vector comparisons count the pairs within each edge (pair_squares.h). With two quantities, weights or
// regions, vectors find the bin of each pair (pair_places.h). Otherwise, each pair's bin comes from a table.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "pair_bins.h"
#include "pair_bytes.h"
#include "pair_leaf_edges.h"
#include "pair_leaves.h"
#include "pair_lookup.h"
#include "pair_places.h"
#include "pair_problem.h"
#include "pair_squares.h"
#include "pair_table.h"
#include "pair_words.h"

namespace jztree {

template <PairMode Mode, int D, typename T>
class LeafPairs {
 public:
  using V = Lanes<float>;
  using Places = Lanes<int32_t>;
  using Side = PairSide<D, T>;

  LeafPairs(const PairProblem<D, T>& problem, PairTable& table)
      : one_(problem.one),
        other_(problem.other),
        rule_(problem.rule),
        lookup_(problem),
        separations_(problem.separations),
        table_(table),
        leaves_(problem.scale, problem.rule.distances.rounding, problem.rule.to_middle(), problem.max_leaf),
        edges_(problem),
        squares_(static_cast<size_t>(problem.first.count)),
#if defined(__AVX2__) && !defined(__AVX512F__)
        words_(sighted ? 0 : problem.max_leaf),
#endif
        first_place_(multiples(problem.first.count, problem.second.count + 1, -first_bits())),
        second_place_(multiples(problem.second.count, 1, first_bits())),
        row_(static_cast<size_t>(problem.max_leaf + lanes)),
        found_(row_.size() / lanes + 1),
        undecided_(found_.size()),
        candidates_(row_.size()),
        place_(row_.size() * lanes),
        weight_b_(table.weighted() ? row_.size() : 0),
        weights_(table.weighted() ? place_.size() : 0) {
  }

  // Count the pairs of leaf a of one set and leaf b of the other. itself: both are the same leaf, and each of its pairs
  // counts once. mixed_regions: the regions differ from pair to pair.
  void count(int64_t a, int64_t b, const Bins& possible, bool itself, bool mixed_regions) {
    leaves_.set(one_.tree, a, other_.tree, b);
    edges_.set(leaves_, possible);
    row_a_ = one_.tree.leaf_row(a), row_b_ = other_.tree.leaf_row(b);
    itself_ = itself, mixed_regions_ = mixed_regions;
    const double weight_b = table_.weighted() ? other_.node_weight(0, b) : 0;
    switch (leaves_.quantities()) {
      case Quantities::plain: return count_as<Quantities::plain>(possible, weight_b);
      case Quantities::pairwise: return count_as<Quantities::pairwise>(possible, weight_b);
      case Quantities::sighted:
        if constexpr (sighted) count_as<Quantities::sighted>(possible, weight_b);
    }
  }

 private:
  static constexpr bool sighted = Mode != PairMode::distance;
  static constexpr uint32_t all_lanes = (uint32_t{1} << lanes) - 1;

  // Consecutive rows of the first leaf whose pairs with a block of the second leaf are separated by the edges from `lo`
  // to before `hi`.
  struct Tile {
    int64_t rows_end, lo, hi;
    bool inside;  // all pairs are in bins, up to rounding
    // If bytes count the pairs, the first and the last place of their second quantities. Otherwise, `last_b` is lower.
    int32_t first_b = 0, last_b = -1;

    bool in_bytes() const { return first_b <= last_b; }
    bool continues(const Tile& previous) const {
      return !in_bytes() && !previous.in_bytes() && lo == previous.lo && hi == previous.hi && inside == previous.inside;
    }
  };

  // Whether blocks of the first leaf have bounds, in addition to their rows.
  template <Quantities How>
  static constexpr bool bounds_blocks = PlaceFinder<Mode>::compares_edges && How != Quantities::sighted;

  // Whether bytes may count pairs. Only plain differences are within their bounds to the last bit.
  template <Quantities How>
#if defined(__AVX2__) && !defined(__AVX512F__)
  static constexpr bool has_bytes = sighted && How == Quantities::plain;
#else
  static constexpr bool has_bytes = false;
#endif

  // The first places lack this number, and the second places contain it.
  int32_t first_bits() const { return sighted ? StepBits(edges_.even()).first : 0; }

  template <Quantities How>
  void count_as(const Bins& possible, double weight_b) {
    if constexpr (!sighted)
      if (possible.hi - possible.lo <= few_edges && !mixed_regions_ && !table_.weighted())
        return compare_leaves<How>(possible);
    const PairBins<Mode, float> limits = edges_.limits();
    find_rows<How>(limits, possible, weight_b);
    if (are_places_worth(possible) && std::isfinite(leaves_.angle())) return place_leaves<How>(limits, possible);
    list_rows();
    for (int64_t k = 0; k < rows_; ++k) look_up_row<How>(limits, row_[static_cast<size_t>(k)]);
  }

  // Whether vectors find the places of pairs in these bins faster than a lookup of every pair. Floats represent the
  // places.
  bool are_places_worth(const Bins& bins) const {
    const bool narrow = bins.hi - bins.lo <= few_edges, narrow_b = bins.hi_b - bins.lo_b <= few_edges;
    return table_.places() < 1 << 20 && narrow && (!sighted || edges_.even().is_even || narrow_b);
  }

  // Find the rows of the first leaf whose pairs may be in several bins. The pairs of the other rows are counted here.
  template <Quantities How>
  void find_rows(const PairBins<Mode, float>& limits, const Bins& possible, double weight_b) {
    // Narrowing takes one step per edge, so rows that span many edges are usually processed without it.
    const bool narrows = possible.is_short() && !separations_;
    for (int64_t begin = 0; begin < leaves_.count_a(); begin += lanes) {
      PairBounds<float> bounds;
      leaves_.template bounds<How>(begin, limits.farthest_along(), bounds);
      uint32_t candidates = limits.candidates(bounds);
      if (leaves_.count_a() - begin < lanes) candidates &= (uint32_t{1} << (leaves_.count_a() - begin)) - 1;
      if (narrows) candidates = without_whole(limits, begin, candidates, bounds, possible, weight_b);
      found_[static_cast<size_t>(begin / lanes)] = candidates;
    }
  }

  // List the found rows.
  void list_rows() {
    rows_ = 0;
    for (int64_t begin = 0; begin < leaves_.count_a(); begin += lanes)
      rows_ +=
          pack_chosen(found_[static_cast<size_t>(begin / lanes)], static_cast<int32_t>(begin), row_.data() + rows_);
  }

  // List the found rows that are near a block of the second leaf, and the edges between their pairs.
  template <Quantities How>
  __attribute__((flatten)) void list_rows_near(int64_t block, const PairBins<Mode, float>& limits, const Bins& bins) {
    leaves_.aim_at_block(block);
    rows_ = 0;
    tiles_.clear();
    const bool may_use_bytes =
        has_bytes<How> && !itself_ && !mixed_regions_ && !table_.weighted() && edges_.even().is_even;
    const int64_t blocks = (leaves_.count_a() + lanes - 1) / lanes;
    for (int64_t first = 0; first < blocks; first += lanes) {
      uint32_t remaining = blocks - first < lanes ? (uint32_t{1} << (blocks - first)) - 1 : all_lanes, inside = 0;
      int32_t lo[lanes], hi[lanes], first_b[lanes], last_b[lanes];
      PairBounds<float> bounds;
      if constexpr (bounds_blocks<How>) {
        leaves_.template bounds<How, true>(first, limits.farthest_along(), bounds);
        remaining &= limits.candidates(bounds);
        if (!itself_) inside = limits.surely_inside(bounds);
        limits.narrow_each(bounds, bins, lo, hi);
        if (may_use_bytes) limits.narrow_second(bounds, edges_.even(), first_b, last_b);
      }
      for (; remaining != 0; remaining &= remaining - 1) {
        const int i = __builtin_ctz(remaining);
        const int64_t begin = (first + i) * lanes;
        uint32_t candidates = found_[static_cast<size_t>(first + i)];
        if (candidates == 0) continue;
        Tile tile{0, bins.lo, bins.hi, (inside >> i & 1) != 0};
        if (bounds_blocks<How>) tile.lo = lo[i], tile.hi = hi[i];
        // Only blocks that the outermost edge crosses have rows that are worth bounds.
        if (!tile.inside) {
          leaves_.template bounds<How>(begin, limits.farthest_along(), bounds);
          candidates &= limits.candidates(bounds);
          if (candidates == 0) continue;
          tile.inside = !itself_ && (candidates & ~limits.surely_inside(bounds)) == 0;
          if (PlaceFinder<Mode>::compares_edges && tile.hi - tile.lo >= PlaceFinder<Mode>::many_edges)
            limits.narrow_first(bounds, tile.lo, tile.hi);
        }
        if constexpr (has_bytes<How>)
          if (may_use_bytes && this->are_few(candidates, tile, last_b[i] - first_b[i] + 1))
            tile.first_b = first_b[i], tile.last_b = last_b[i];
        rows_ += pack_chosen(candidates, static_cast<int32_t>(begin), row_.data() + rows_);
        tile.rows_end = rows_;
        if (!tiles_.empty() && tile.continues(tiles_.back())) tiles_.pop_back();
        tiles_.push_back(tile);
      }
    }
  }

  uint32_t without_whole(const PairBins<Mode, float>& limits, int64_t begin, uint32_t candidates,
                         const PairBounds<float>& bounds, const Bins& possible, double weight_b) {
    for (uint32_t remaining = candidates; remaining != 0; remaining &= remaining - 1) {
      int i = __builtin_ctz(remaining);
      Bins bins = possible;
      limits.narrow(bounds, i, bins);
      const bool counts = limits.counts(bins);
      if (counts && (!bins.is_single() || mixed_regions_ || itself_)) continue;
      candidates &= ~(uint32_t{1} << i);
      if (!counts) continue;
      const double weight = one_.weight(row_a_ + begin + i) * weight_b;
      table_.add(table_.place(bins.lo, bins.lo_b), leaves_.count_b(), weight);
    }
    return candidates;
  }

  // Find the bins of the pairs, one block of the second leaf after another.
  template <Quantities How>
  void place_leaves(const PairBins<Mode, float>& limits, const Bins& bins) {
    const bool weighted = table_.weighted() && !mixed_regions_;
    // Bounds across separate lines of sight take longer than the pairs that they leave out.
    constexpr bool bounds_rows = Mode != PairMode::across_along || How != Quantities::sighted;
    if (!bounds_rows) {
      list_rows();
      tiles_.assign(1, {rows_, bins.lo, bins.hi, false});
    }
    if (bounds_blocks<How>) leaves_.set_blocks();
    PlaceFinder<Mode> finder(bins, limits, edges_.even(), first_place_.data(), second_place_.data());
    if (weighted)
      for (int64_t i = 0; i < leaves_.count_b(); ++i) weight_b_[static_cast<size_t>(i)] = other_.weight(row_b_ + i);
    for (int64_t begin = 0; begin < leaves_.count_b(); begin += lanes) {
      if (bounds_rows) list_rows_near<How>(begin, limits, bins);
      if (rows_ == 0) continue;
      const int64_t pairs = place_block<How>(finder, limits, begin);
      if (mixed_regions_) {
        add_mixed(begin);
      } else {
        if (weighted) put_weights(begin);
        table_.add_pairs(place_.data(), weights_.data(), pairs);
      }
    }
  }

  // Find the places of the pairs with a block of the second leaf. Returns their number.
  template <Quantities How>
  int64_t place_block(PlaceFinder<Mode>& finder, const PairBins<Mode, float>& limits, int64_t begin) {
    int32_t* end = place_.data();
    int64_t row = 0;
    for (const Tile& tile : tiles_) {
      finder.aim(tile.lo, tile.hi);
      using Finder = PlaceFinder<Mode>;
      const auto place = [&](auto edges) {
        using Edges = decltype(edges);
        if constexpr (has_bytes<How> && Edges::value != Finder::uneven)
          if (tile.in_bytes()) return this->template count_bytes<How, Edges::value>(finder, begin, row, tile);
        end = tile.inside ? place_rows<How, true, Edges::value>(finder, limits, begin, row, tile.rows_end, end)
                          : place_rows<How, false, Edges::value>(finder, limits, begin, row, tile.rows_end, end);
      };
      switch (finder.edges()) {
        case 0: place(std::integral_constant<int64_t, 0>{}); break;
        case 1: place(std::integral_constant<int64_t, 1>{}); break;
        case 2: place(std::integral_constant<int64_t, 2>{}); break;
        case 3: place(std::integral_constant<int64_t, 3>{}); break;
        case Finder::many_edges: place(std::integral_constant<int64_t, Finder::many_edges>{}); break;
        default: place(std::integral_constant<int64_t, Finder::uneven>{});
      }
      row = tile.rows_end;
    }
    return end - place_.data();
  }

  // Write the places of the pairs of some rows with a block of the second leaf. Returns their end. Inside: all pairs
  // are in bins, up to rounding. Edges: the number of edges that separate the pairs, or many.
  template <Quantities How, bool Inside, int64_t Edges>
  __attribute__((noinline, flatten)) int32_t* place_rows(const PlaceFinder<Mode>& prepared,
                                                         const PairBins<Mode, float>& limits, int64_t begin,
                                                         int64_t first_row, int64_t rows_end, int32_t* end) {
    const PlaceFinder<Mode> finder = prepared;  // without an address, so that it stays in registers
    const PairErrors<float>& errors = edges_.errors();
    const V outermost(limits.first().outermost() + errors.per_distance2 * limits.farthest2() + errors.across2);
    const V farthest(limits.farthest_along() + errors.along);
    const auto block = leaves_.template block<How>(begin);
    const bool itself = itself_;
    const int64_t block_size = std::min(lanes, leaves_.count_b() - begin);
    const uint32_t valid = (uint32_t{1} << block_size) - 1;
    const int32_t *row = row_.data() + first_row, *const last = row_.data() + rows_end;
    uint32_t* row_candidates = candidates_.data() + first_row;
    for (; row < last; ++row, ++row_candidates) {
      V first, along{};
      block.template quantities<How>(*row, first, along);
      uint32_t candidates = valid;
      if (!Inside) {
        SomeLanes chosen = at_most(first, outermost);
        if (Mode == PairMode::across_along) chosen = chosen & at_most(along, farthest);
        candidates = bits(chosen);
        if (itself) candidates &= behind(*row, begin);
      }
      *row_candidates = candidates;
      if (!Inside && candidates == 0) continue;
      Places found;
      const uint32_t unsure =
          bits(finder.template find<How == Quantities::sighted, Edges>(first, along, found)) & candidates;
      if (unsure != 0) found = decided<false>(found, unsure, row_a_ + *row, row_b_ + begin, first, along);
      if (Inside) {
        store(found, end);
        end += block_size;
      } else {
        end += keep_lanes(found, candidates, end);
      }
    }
    return end;
  }

#if defined(__AVX2__) && !defined(__AVX512F__)
  // Whether bytes count the pairs of some rows fast.
  bool are_few(uint32_t rows, const Tile& tile, int64_t places_b) const {
    const int64_t edges = std::min(tile.hi, edges_.first().count - 1) - std::max<int64_t>(tile.lo, 1) + 1;
    const int64_t places = (places_b + PairBytes::step - 1) / PairBytes::step * PairBytes::step;
    return places_b > 0 && edges * places <= PairBytes::max_places && places <= table_.place(1, 0) &&
           table_.place(edges, 0) < PairBytes::span && __builtin_popcount(rows) >= PairBytes::min_rows;
  }

  // Count the pairs of a tile by bytes.
  template <Quantities How, int64_t Edges>
  __attribute__((noinline, flatten)) void count_bytes(const PlaceFinder<Mode>& prepared, int64_t begin,
                                                      int64_t first_row, const Tile& tile) {
    const PlaceFinder<Mode> finder = prepared;  // without an address, so that it stays in registers
    const auto block = leaves_.template block<How>(begin);
    const int64_t first = std::max<int64_t>(tile.lo, 1), last = std::min(tile.hi, edges_.first().count - 1);
    const int64_t block_size = std::min(lanes, leaves_.count_b() - begin);
    PairBytes bytes(static_cast<int32_t>(table_.place(first, tile.first_b)), block_size);
    const uint32_t valid = (uint32_t{1} << block_size) - 1;
    const int32_t *row = row_.data() + first_row, *const end = row_.data() + tile.rows_end;
    for (; row < end; ++row) {
      V distance, along{};
      block.template quantities<How>(*row, distance, along);
      Places found;
      const uint32_t unsure = jztree::bits(finder.template find<false, Edges>(distance, along, found)) & valid;
      if (unsure != 0) found = decided<true>(found, unsure, row_a_ + *row, row_b_ + begin, distance, along);
      bytes.add_row(found);
    }
    bytes.end();
    for (int64_t edge = first; edge <= last; ++edge)
      bytes.count(table_.place(edge - first, 0), tile.last_b - tile.first_b + 1,
                  table_.counts(table_.place(edge, tile.first_b)));
  }
#endif

  // The places of the pairs of one row with `lanes` others, after float64 has decided on the given ones. Counts: the
  // decided pairs are counted here, and have place 0.
  template <bool Counts>
  __attribute__((noinline)) Places decided(Places found, uint32_t unsure, int64_t row_a, int64_t row_b, V first,
                                           V along) {
    float firsts[lanes], alongs[lanes];
    int32_t places[lanes];
    store(first, firsts);
    store(along, alongs);
    store(found, places);
    for (; unsure != 0; unsure &= unsure - 1) {
      const int lane = __builtin_ctz(unsure);
      const int64_t place = lookup_.place_of(row_a, row_b + lane, firsts[lane], alongs[lane]);
      if (Counts) table_.add(place, 1, 0);
      places[lane] = Counts ? 0 : static_cast<int32_t>(place);
    }
    Places out;
    load(places, out);
    return out;
  }

  // Find the weights of the pairs with a block of the second leaf.
  void put_weights(int64_t begin) {
    double* to = weights_.data();
    Lanes<double> weights;
    load(weight_b_.data() + begin, weights);
    for (int64_t k = 0; k < rows_; ++k) {
      const int64_t row_a = row_a_ + row_[static_cast<size_t>(k)];
      uint32_t candidates = candidates_[static_cast<size_t>(k)];
      if (separations_) {
        for (; candidates != 0; candidates &= candidates - 1)
          *to++ = pair_weight(row_a, row_b_ + begin + __builtin_ctz(candidates));
      } else {
        to += keep_lanes(weights * one_.weight(row_a), candidates, to);
      }
    }
  }

  // Add the found places, each pair to its own regions.
  void add_mixed(int64_t begin) {
    const int32_t* place = place_.data();
    for (int64_t k = 0; k < rows_; ++k) {
      const int64_t row_a = row_a_ + row_[static_cast<size_t>(k)];
      for (uint32_t remaining = candidates_[static_cast<size_t>(k)]; remaining != 0; remaining &= remaining - 1)
        add(row_a, row_b_ + begin + __builtin_ctz(remaining), *place++);
    }
  }

  double pair_weight(int64_t row_a, int64_t row_b) const {
    const double weight = one_.weight(row_a) * other_.weight(row_b);
    return separations_ ? weight * rule_.separation(one_.pos + row_a * D, other_.pos + row_b * D) : weight;
  }

  // Count the pairs within each edge.
  template <Quantities How>
  void compare_leaves(const Bins& bins) {
    rows_ = 0;
    for (int64_t begin = 0; begin < leaves_.count_a(); begin += lanes) {
      int64_t count = std::min(lanes, leaves_.count_a() - begin);
      uint32_t rows = (uint32_t{1} << count) - 1;
      if (!itself_) rows = split<How>(begin, rows, bins);
      rows_ += pack_chosen(rows, static_cast<int32_t>(begin), row_.data() + rows_);
    }
    if (rows_ == 0) return;
    const int64_t end = leaves_.count_a();
    // The number of compared pairs. If one edge contains every pair, this is the total number of pairs.
    int64_t pairs = itself_ ? end * (end - 1) / 2 : rows_ * leaves_.count_b();
    float* squares = squares_.begin(bins.lo, bins.hi);
#if defined(__AVX2__) && !defined(__AVX512F__)
    const int64_t edges = bins.hi - bins.lo;
    if (!itself_ && How == Quantities::plain && rows_ >= PairWords<D>::min_rows && edges <= PairWords<D>::max_edges &&
        leaves_.prepare(words_, edges_.first(), bins.lo, bins.hi)) {
      count_words(std::make_integer_sequence<int, PairWords<D>::max_edges>{}, bins);
      return add_compared<How>(bins, pairs);
    }
#endif
    // Pairs with separate images are rare, so they get no special code for few edges.
    switch (itself_ || How != Quantities::plain ? 0 : bins.hi - bins.lo) {
      case 1: compare_few<1>(bins); break;
      case 2: compare_few<2>(bins); break;
      case 3: compare_few<3>(bins); break;
      case 4: compare_few<4>(bins); break;
      default: itself_ ? compare_many<How, true>(bins, squares) : compare_many<How, false>(bins, squares);
    }
    add_compared<How>(bins, pairs);
  }

  template <int Edges>
  __attribute__((flatten)) void compare_few(const Bins& bins) {
    const int32_t *const rows = row_.data(), *const end = rows + rows_;
    const EdgeBounds<float> first = edges_.first();
    FewEdges<Edges> edges(first.surely + bins.lo, first.possibly + bins.lo);
    for (int64_t begin = 0; begin < leaves_.count_b(); begin += lanes) {
      const auto block = leaves_.template block<Quantities::plain>(begin);
      for (const int32_t* row = rows; row < end; ++row) {
        V distance2, along{};
        block.template quantities<Quantities::plain>(*row, distance2, along);
        edges.add(distance2);
      }
      undecided_[static_cast<size_t>(begin / lanes)] = edges.has_undecided();
    }
    squares_.add(bins.lo, edges);
  }

#if defined(__AVX2__) && !defined(__AVX512F__)
  template <int... Less>
  void count_words(std::integer_sequence<int, Less...>, const Bins& bins) {
    ((bins.hi - bins.lo == Less + 1 ? compare_words<Less + 1>(bins) : void()), ...);
  }

  template <int Edges>
  __attribute__((noinline, flatten)) void compare_words(const Bins& bins) {
    const int32_t *const rows = row_.data(), *const end = rows + rows_;
    for (int64_t begin = 0; begin < leaves_.count_b(); begin += lanes)
      for (const int32_t* row = rows; row < end; row += PairWords<D>::rows_at_once) {
        const int32_t* const next = std::min(row + PairWords<D>::rows_at_once, end);
        if (!words_.template count<Edges>(row, next, begin)) count_exactly(row, next, begin, bins);
      }
    for (int edge = 0; edge < Edges; ++edge) squares_.add(bins.lo + edge, words_.within(edge));
  }

  // Count the pairs of some rows with `lanes` rows of the second leaf.
  __attribute__((noinline, flatten)) void count_exactly(const int32_t* row, const int32_t* end, int64_t begin,
                                                        const Bins& bins) {
    const EdgeBounds<float> first = edges_.first();
    const auto block = leaves_.template block<Quantities::plain>(begin);
    for (; row < end; ++row) {
      V distance2, along{};
      block.template quantities<Quantities::plain>(*row, distance2, along);
      for (int64_t edge = bins.lo; edge < bins.hi; ++edge) {
        const uint32_t within = lanes_at_most(distance2, V(first.surely[edge]));
        squares_.add(edge, __builtin_popcount(within));
        for (uint32_t unsure = lanes_at_most(distance2, V(first.possibly[edge])) & ~within; unsure != 0;
             unsure &= unsure - 1)
          squares_.add(edge, lookup_.is_within(row_a_ + *row, row_b_ + begin + __builtin_ctz(unsure), edge));
      }
    }
  }
#endif

  template <Quantities How, bool Itself>
  __attribute__((flatten)) void compare_many(const Bins& bins, float* to) {
    const EdgeBounds<float> first = edges_.first();
    // Pairs outside the last edge do not count, if pairs can be outside it.
    const bool chooses = Itself || bins.hi == first.count;
    const V outermost(first.outermost());
    const int32_t *const rows = row_.data(), *const end = rows + rows_;
    std::fill(undecided_.begin(), undecided_.end(), uint8_t{0});
    uint8_t* undecided = undecided_.data();  // of the first block with squares in the buffer
    for (int64_t begin = 0; begin < leaves_.count_b(); begin += lanes) {
      const auto block = leaves_.template block<How>(begin);
      uint8_t* const block_undecided = undecided_.data() + begin / lanes;
      for (const int32_t* row = rows; row < end; ++row) {
        V distance2, along{};
        block.template quantities<How>(*row, distance2, along);
        if (chooses) {
          uint32_t candidates = lanes_at_most(distance2, outermost);
          if (Itself) candidates &= behind(*row, begin);
          to += keep_lanes(distance2, candidates, to);
        } else {
          store(distance2, to);
          to += lanes;
        }
        if (!squares_.full(to)) continue;
        if (squares_.sift(first.surely, first.possibly, to)) std::fill(undecided, block_undecided + 1, uint8_t{1});
        to = squares_.start();
        undecided = block_undecided;
      }
    }
    if (squares_.sift(first.surely, first.possibly, to)) std::fill(undecided, undecided_.data() + undecided_.size(), 1);
  }

  // Among the given rows of the first leaf, starting at `begin`, return those with pairs on both sides of an edge. The
  // pairs of the other rows are counted here.
  template <Quantities How>
  uint32_t split(int64_t begin, uint32_t rows, const Bins& bins) {
    PairBounds<float> bounds;
    leaves_.template bounds<How>(begin, 0, bounds);
    V gap, reach;
    load(bounds.gap, gap);
    load(bounds.reach, reach);
    const EdgeBounds<float> first = edges_.first();
    int64_t *table = table_.counts(0), each = leaves_.count_b();
    uint32_t both_sides = 0, beyond = rows;  // rows above the previous edge
    for (int64_t edge = bins.lo; edge < bins.hi; ++edge) {
      uint32_t within = lanes_at_most(reach, V(first.surely[edge])) & rows;
      uint32_t none_within = ~lanes_at_most(gap, V(first.possibly[edge])) & rows;
      table[edge] += __builtin_popcount(within & beyond) * each;
      both_sides |= rows & ~(within | none_within);
      beyond = none_within;
    }
    table[bins.hi] += __builtin_popcount(beyond) * each;
    return both_sides;
  }

  // The particles of the second leaf, starting at `begin`, that form pairs with the i-th particle of the first.
  uint32_t behind(int64_t i, int64_t begin) const {
    if (!itself_ || i < begin) return ~uint32_t{0};
    return i - begin < lanes ? ~uint32_t{0} << (i - begin) << 1 : 0;
  }

  template <Quantities How>
  void add_compared(const Bins& bins, int64_t pairs) {
    int64_t outside = pairs, *table = table_.counts(0);
    for (int64_t edge = bins.hi - 1; edge >= bins.lo && outside > 0; --edge) {
      int64_t inside = squares_.surely(edge);
      if (squares_.possibly(edge) != inside) inside += decide<How>(edge);
      table[edge + 1] += outside - inside;
      outside = inside;
    }
    table[bins.lo] += outside;
  }

  // The number of undecided pairs that are within an edge.
  template <Quantities How>
  __attribute__((noinline)) int64_t decide(int64_t edge) const {
    const V surely(edges_.first().surely[edge]), possibly(edges_.first().possibly[edge]);
    int64_t within = 0;
    for (int64_t k = 0; k < rows_; ++k) {
      const int64_t i = row_[static_cast<size_t>(k)];
      const auto row = leaves_.template row<How>(i);
      for (int64_t begin = itself_ ? i / lanes * lanes : 0; begin < leaves_.count_b(); begin += lanes) {
        if (!undecided_[static_cast<size_t>(begin / lanes)]) continue;
        V distance2, along{};
        row.template quantities<How>(begin, distance2, along);
        uint32_t unsure = lanes_at_most(distance2, possibly) & ~lanes_at_most(distance2, surely) & behind(i, begin);
        for (; unsure != 0; unsure &= unsure - 1)
          within += lookup_.is_within(row_a_ + i, row_b_ + begin + __builtin_ctz(unsure), edge);
      }
    }
    return within;
  }

  template <Quantities How>
  __attribute__((flatten)) void look_up_row(const PairBins<Mode, float>& limits, int64_t i) {
    const auto row = leaves_.template row<How>(i);
    const bool to_middle = How == Quantities::sighted;
    const V outermost(to_middle ? limits.farthest2() : limits.first().outermost()), farthest(limits.farthest_along());
    for (int64_t begin = itself_ ? i / lanes * lanes : 0; begin < leaves_.count_b(); begin += lanes) {
      V first, along{};
      // Without a direction, only the distance is known.
      to_middle ? row.distances(begin, first) : row.template quantities<How>(begin, first, along);
      uint32_t candidates = lanes_at_most(first, outermost) & behind(i, begin);
      if (sighted && !to_middle) candidates &= lanes_at_most(along, farthest);
      if (candidates != 0) look_up_lanes(row_a_ + i, row_b_ + begin, candidates, first, along);
    }
  }

  // This function is not inlined, because the compiler would repeat its code for each kind of row.
  __attribute__((noinline, flatten)) void look_up_lanes(int64_t row_a, int64_t row_b, uint32_t candidates,
                                                        const V& first, const V& along) {
    float firsts[lanes], alongs[lanes];
    store(first, firsts);
    if (sighted) store(along, alongs);
    for (; candidates != 0; candidates &= candidates - 1) {
      const int lane = __builtin_ctz(candidates);
      const int64_t place = lookup_.place_of(row_a, row_b + lane, firsts[lane], sighted ? alongs[lane] : 0);
      if (place != 0) add(row_a, row_b + lane, place);
    }
  }

  void add(int64_t row_a, int64_t row_b, int64_t place) {
    double weight = table_.weighted() ? pair_weight(row_a, row_b) : 0;
    if (mixed_regions_) {
      table_.add_pair(place, one_.region(row_a), other_.region(row_b), weight);
    } else {
      table_.add(place, 1, weight);
    }
  }

  const Side &one_, &other_;
  const PairRule<D, T>& rule_;
  const PairLookup<Mode, D, T> lookup_;
  const bool separations_;
  PairTable& table_;
  PairLeaves<Mode, D, T> leaves_;
  LeafEdges<Mode, D, T> edges_;
  PairSquares squares_;
#if defined(__AVX2__) && !defined(__AVX512F__)
  PairWords<D> words_;
#endif
  const std::vector<int32_t> first_place_, second_place_;  // one for each edge, and one for values above the last
  // The current leaves: their first rows, and the rows of the first leaf that are not counted as a whole.
  int64_t row_a_ = 0, row_b_ = 0, rows_ = 0;
  std::vector<int32_t> row_;
  std::vector<Tile> tiles_;
  std::vector<uint32_t> found_;       // the rows of each block of the first leaf with pairs in several bins
  std::vector<uint8_t> undecided_;    // whether blocks of the second leaf may have undecided pairs
  std::vector<uint32_t> candidates_;  // the pairs of each row that may be in bins
  std::vector<int32_t> place_;        // of the chosen pairs
  std::vector<double> weight_b_;      // of the second leaf
  std::vector<double> weights_;       // of the pairs with places
  bool itself_ = false;               // both are the same leaf, and each of its pairs counts once
  bool mixed_regions_ = false;        // the regions differ from pair to pair
};

}  // namespace jztree
